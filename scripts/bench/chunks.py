"""How evenly the chunks of attn_decode fall on the blocks that an H200 has under way at once, by rules for their length. Nothing is run on
a GPU: blocks that stream share the memory's rate and their multiprocessor's, and what else they do takes a time of its own. `s` is the
module of scripts/bench/step, whose constants are used; those here are assumptions as well."""
from dataclasses import dataclass
from functools import partial

SPANS = (1024, 4096, 8192, 9000, 12288, 16384, 32768, 65536, 131072)
TILE = 0.57       # a tile of 64 keys by one block alone: fetches, two barriers, chains of products, exponentials
AGAIN = 1.1       # between two chunks of a block: the last tile, its store, list and rows of the next
END_CHUNK = 0.9   # the last tile, its store, sums of warps
JOIN_RATE = 64    # bytes a cycle from L2 of a multiprocessor whose neighbours are idle


@dataclass(frozen=True)
class Shape:
    name: str
    tokens: int     # texts of equal length
    heads: int      # of K and V
    rows: int       # heads of a group
    item: int       # bytes of an item of a head, K and V
    resident: int   # blocks that a multiprocessor holds


SHAPES = (Shape("one token, 8 KV heads, f16", 1, 8, 4, 512, 2), Shape("one token, 8 KV heads, q8_0", 1, 8, 4, 272, 3),
          Shape("one token, 4 KV heads, f16", 1, 4, 7, 512, 2), Shape("one token, 1 KV head, f16", 1, 1, 16, 512, 2),
          Shape("4 texts, 8 KV heads, f16", 4, 8, 4, 512, 2), Shape("16 texts, 8 KV heads, f16", 16, 8, 4, 512, 2))


def now(shape, span):
    """chunk_len of kernels/attn_decode.cu, most_chunks of cuda/launch_attn.c."""
    return max(256, -(-span // max(8, min(64, 256 // shape.heads))))


def fixed(length, _shape, _span):
    return length


RULES = {"this": now, "128": partial(fixed, 128), "192": partial(fixed, 192), "256": partial(fixed, 256)}


def rates(s, streams, shape):
    """Bytes a microsecond of a block that streams, by how many of them its multiprocessor has."""
    block = min(64 * shape.item / TILE, 128 * shape.item / s.HBM)  # two tiles are under way
    most = {n: min(block, s.L2_RATE / s.US / n) for n in set(streams) if n}
    left, blocks, share = s.BANDWIDTH / s.US, sum(streams), {}
    for n in sorted(most, key=most.get):  # who cannot take an equal share leaves the rest to others
        share[n] = min(most[n], left / blocks)
        left, blocks = left - share[n] * n * streams.count(n), blocks - n * streams.count(n)
    return share


def simulate(s, shape, span, length):
    """Microseconds from the launch's beginning to its end, and the share of them that the memory idles."""
    n, groups, at_once = -(-span // length), shape.tokens * shape.heads, s.N_SM * shape.resident
    walkers = max(1, min(at_once // shape.heads, 4 * at_once // groups, n))  # cuda/launch_attn.c
    join = s.COUNT + s.L2 + n * shape.rows * (s.D + 4) * 4 / (JOIN_RATE * s.CLOCK) * s.US + 2 * s.L2 + s.STEP
    unfinished, begun, time, idle = [walkers] * groups, 0, s.END + s.L2, s.END + s.L2
    on = [[] for _ in range(s.N_SM)]  # of each block: its group, first chunk, state, what is left of that

    def begin(sm, wait):
        nonlocal begun
        if begun < walkers * groups:
            on[sm].append([begun % groups, begun // groups, "wait", wait])
            begun += 1

    def step_on(block):
        """What a block does next; None: it leaves."""
        group, chunk, state, _ = block
        if state == "wait":
            return [group, chunk, "stream", min(length, span - chunk * length) * shape.item]
        if state == "end":
            return None
        if chunk + walkers < n:
            return [group, chunk + walkers, "wait", AGAIN]
        unfinished[group] -= 1
        return [group, chunk, "end", END_CHUNK + (0 if unfinished[group] else join)]

    for i in range(at_once):
        begin(i % s.N_SM, 0.15 * (i * 0.618 % 1))  # they do not begin as one
    while any(on):
        streams = [sum(b[2] == "stream" for b in blocks) for blocks in on]
        share = rates(s, streams, shape)
        speed = [share[k] if k else 0 for k in streams]
        least = min(b[3] / (speed[sm] if b[2] == "stream" else 1) for sm, blocks in enumerate(on) for b in blocks) + 0.02
        time += least
        idle += least * (1 - sum(k * v for k, v in zip(streams, speed)) / (s.BANDWIDTH / s.US))
        for sm, blocks in enumerate(on):
            for i, b in enumerate(blocks):
                b[3] -= least * (speed[sm] if b[2] == "stream" else 1)
                if b[3] <= 0:
                    blocks[i] = step_on(b)
            gone = blocks.count(None)
            on[sm] = [b for b in blocks if b]
            for _ in range(gone):
                begin(sm, 0.5)
    return time, idle / time


def section(s):
    lines = ["Predicted, not measured: attention of Llama-3-8B's head size on an H200, µs of a launch, and the share of it that the memory idles."]
    for shape in SHAPES:
        lines += ["", f"| {shape.name}; cells | chunks | {' | '.join(f'chunks of {r}' if r.isdigit() else 'this rule' for r in RULES)} |",
                  "|---:|---:|" + "---:|" * len(RULES)]
        for span in SPANS:
            if shape.tokens * span > 1 << 18:
                break
            times = [simulate(s, shape, span, rule(shape, span)) for rule in RULES.values()]
            lines.append(f"| {span:,} | {-(-span // now(shape, span))} | {' | '.join(f'{t:.1f}, {100 * i:.0f}%' for t, i in times)} |")
    return "\n".join(lines)
