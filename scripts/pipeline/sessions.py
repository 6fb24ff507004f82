"""Recorded sessions (tools/commands/session.h) for pipelines: prompts in chunks, groups of sequences, and everything that an order
of the first rank can change on the others."""


def tokens(n, start):
    """n tokens below 90, which every model of the tests has."""
    out, x = [], start
    for _ in range(n):
        x = (x * 1103515245 + 12345) & 0x7FFFFFFF
        out.append((x >> 8) % 90)
    return out


def decode(n, pos, seq, rows=1):
    """n tokens of the sequences `seq` from position pos on; logits of the last rows."""
    return {"op": "decode", "tokens": tokens(n, 31 * pos + seq[0] + n), "pos": list(range(pos, pos + n)), "seq": [seq] * n,
            "logits": [int(i >= n - rows) for i in range(n)]}


def together(*batches):
    """One batch of several."""
    out = {"op": "decode"}
    for key in ("tokens", "pos", "seq", "logits"):
        out[key] = [item for b in batches for item in b[key]]
    return out


def op(name, **arguments):
    return {"op": name, **arguments}


def save(slot):
    return op("state_save", slot=slot)


def load(slot):
    return op("state_load", slot=slot)


def context(**more):
    return {"n_ctx": 256, "n_batch": 64, "n_ubatch": 7, "n_seq_max": 4, "type_v": "f32", **more}


def moves(**more):
    """Cells that are shared, removed, moved, divided, saved and restored."""
    return {"context": context(swa_full=1, **more), "ops": [
        decode(40, 0, [0], 5),
        op("seq_cp", src=0, dst=1, p0=-1, p1=-1),
        together(decode(9, 40, [1]), decode(5, 40, [0], 5)),
        op("seq_rm", seq=0, p0=10, p1=14),
        op("seq_cp", src=0, dst=2, p0=0, p1=20),
        op("seq_add", seq=0, p0=14, p1=-1, delta=-4),
        decode(12, 41, [0], 2),
        save(0),
        decode(5, 53, [0], 5),
        load(0),
        together(decode(3, 53, [0]), decode(1, 49, [1])),
        op("seq_rm", seq=1, p0=-1, p1=-1),
        op("seq_div", seq=0, p0=20, p1=-1, d=2),
        save(1),
        decode(8, 60, [0], 8),
        op("seq_keep", seq=0),
        decode(20, 68, [0]),
        load(1),
        decode(8, 60, [0], 8),
        op("clear"),
        decode(16, 0, [3], 16),
    ]}


def tails(**more):
    """What caches of every kind can do: copy all, forget all, keep one, save and restore."""
    return {"context": context(**more), "ops": [
        decode(40, 0, [0], 5),
        op("seq_cp", src=0, dst=1, p0=-1, p1=-1),
        together(decode(1, 40, [1]), decode(1, 40, [0])),
        together(decode(11, 41, [1]), decode(3, 41, [0], 3), decode(6, 0, [2])),
        save(0),
        together(decode(1, 52, [1]), decode(1, 44, [0]), decode(1, 6, [2])),
        op("seq_rm", seq=1, p0=-1, p1=-1),
        decode(9, 0, [1], 9),
        load(0),
        together(decode(1, 52, [1]), decode(1, 44, [0]), decode(1, 6, [2])),
        op("seq_keep", seq=1),
        decode(20, 53, [1]),
        op("clear"),
        decode(16, 0, [3], 16),
    ]}


def whole():
    """Of models that look at all tokens at once."""
    return {"context": context(n_ubatch=64), "ops": [
        {**decode(40, 0, [0], 40), "op": "encode"}, {**decode(9, 0, [0], 9), "op": "encode"}]}


SESSIONS = {
    "moves": moves(),
    "moves-pools": moves(kv_unified=0, n_ctx=1024),
    "grouped": moves(self_extend_n=4, self_extend_w=16),
    "tails": tails(),
    "tails-pools": tails(kv_unified=0, n_ctx=1024, type_k="f32"),
    "whole": whole(),
}
