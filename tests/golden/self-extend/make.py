"""Writes what a float64 implementation of the default model answers to sessions with Self-Extend's
exact neighbour window and with context shifts; tests/models/window.c compares.

    python3 make.py ../../../tools/default-model.gguf ../default-model/passkey.json

sessions.json: a list of {"self_extend_n", "self_extend_w", "ops"}; an operation is ["decode", [token, ..]],
["rm", p0, p1], ["add", p0, p1, delta], ["div", p0, p1, d] or ["shift", n_keep, n_discard].
logits.f32: for each decode, in order, the logits [min(2, tokens), 768] of its last tokens.

The attention is that of Jin et al. 2024 (arXiv 2401.01325), Algorithm 1: query i meets key j by
their own positions when i - j < w, and otherwise as if they were at i // n + w - w // n and at
j // n. Keys are kept unrotated here and rotated when they are read, so an operation on positions is
nothing but that.
"""

import argparse
import json
import pathlib

import gguf
import numpy as np

LAST = 2


class Model:
    def __init__(self, file):
        reader = gguf.GGUFReader(file)
        self.fields = {name: field.contents() for name, field in reader.fields.items()}
        self.weights = {t.name: t.data.astype(np.float64) for t in reader.tensors}
        self.n_layer = self.fields["llama.block_count"]
        self.n_head = self.fields["llama.attention.head_count"]
        self.n_head_kv = self.fields["llama.attention.head_count_kv"]
        self.eps = self.fields["llama.attention.layer_norm_rms_epsilon"]
        d = self.fields["llama.rope.dimension_count"]
        self.frequency = self.fields["llama.rope.freq_base"] ** (-np.arange(0, d, 2) / d)


def rotate(x, positions, frequency):
    """x [n_head, n, d] turned pair by pair: (x0, x1), (x2, x3), ..."""
    z = (x[..., 0::2] + 1j * x[..., 1::2]) * np.exp(1j * np.outer(positions, frequency))
    return np.stack([z.real, z.imag], -1).reshape(x.shape)


class Session:
    def __init__(self, model, n, w):
        self.model, self.n, self.w = model, n, w
        self.positions = np.zeros(0, np.int64)
        self.keys = [np.zeros((model.n_head_kv, 0, 64))] * model.n_layer
        self.values = list(self.keys)

    def end(self):
        return int(self.positions.max()) + 1 if len(self.positions) else 0

    def inside(self, p0, p1):
        return (self.positions >= p0) & (self.positions < p1)

    def keep(self, rows):
        self.positions = self.positions[rows]
        self.keys = [k[:, rows] for k in self.keys]
        self.values = [v[:, rows] for v in self.values]

    def rm(self, p0, p1):
        self.keep(~self.inside(p0, p1))

    def add(self, p0, p1, delta):
        self.positions = np.where(self.inside(p0, p1), self.positions + delta, self.positions)
        self.keep(self.positions >= 0)

    def div(self, p0, p1, d):
        self.positions = np.where(self.inside(p0, p1), self.positions // d, self.positions)

    def shift(self, n_keep, n_discard):
        end = self.end()
        self.rm(n_keep, n_keep + n_discard)
        self.add(n_keep + n_discard, end, -n_discard)

    def scores(self, q, k, new):
        """q [n_head, n_tok, d], k [n_head, n_cell, d]: products [n_head, n_tok, n_cell]"""

        def meet(of_q, of_k):
            f = self.model.frequency
            return rotate(q, of_q, f) @ rotate(k, of_k, f).swapaxes(1, 2)

        exact = meet(new, self.positions)
        if self.n <= 1:
            return exact
        far = meet(new // self.n + self.w - self.w // self.n, self.positions // self.n)
        return np.where(new[:, None] - self.positions < self.w, exact, far)

    def attention(self, il, x, new):
        m, w = self.model, self.model.weights

        def heads(name, n):
            return (x @ w[f"blk.{il}.attn_{name}.weight"].T).reshape(len(x), n, -1).swapaxes(0, 1)

        self.keys[il] = np.concatenate([self.keys[il], heads("k", m.n_head_kv)], 1)
        self.values[il] = np.concatenate([self.values[il], heads("v", m.n_head_kv)], 1)
        group = m.n_head // m.n_head_kv
        k, v = (a.repeat(group, 0) for a in (self.keys[il], self.values[il]))
        scores = self.scores(heads("q", m.n_head), k, new) / np.sqrt(k.shape[-1])
        scores = np.where(self.positions <= new[:, None], scores, -np.inf)
        p = np.exp(scores - scores.max(-1, keepdims=True))
        y = (p / p.sum(-1, keepdims=True)) @ v
        return y.swapaxes(0, 1).reshape(len(x), -1) @ w[f"blk.{il}.attn_output.weight"].T

    def norm(self, x, name):
        scale = np.sqrt(np.square(x).mean(-1, keepdims=True) + self.model.eps)
        return x / scale * self.model.weights[f"{name}.weight"]

    def decode(self, tokens):
        new = self.end() + np.arange(len(tokens))
        w = self.model.weights
        self.positions = np.concatenate([self.positions, new])
        x = w["token_embd.weight"][tokens]
        for il in range(self.model.n_layer):
            x = x + self.attention(il, self.norm(x, f"blk.{il}.attn_norm"), new)
            h = self.norm(x, f"blk.{il}.ffn_norm")
            gate = h @ w[f"blk.{il}.ffn_gate.weight"].T
            up = h @ w[f"blk.{il}.ffn_up.weight"].T
            x = x + (gate / (1 + np.exp(-gate)) * up) @ w[f"blk.{il}.ffn_down.weight"].T
        return (self.norm(x, "output_norm") @ w["token_embd.weight"].T)[-LAST:]


def sessions(take):
    """Each with text of its own, take(n) of it at a time."""
    decode = lambda n: ["decode", take(n)]
    moves = [
        decode(100), decode(60), decode(1), decode(1), decode(3), ["rm", 40, 50], decode(5),
        ["rm", 163, 400], decode(9), ["add", 60, 400, -7], decode(8), ["add", 0, 400, 9], decode(2),
        ["shift", 10, 33], decode(10), decode(1), ["div", 20, 60, 3], decode(6),
    ]
    shifts = [decode(200)]
    for _ in range(4):
        shifts += [["shift", 5, 50], decode(37), decode(1)]
    return [
        {"self_extend_n": 4, "self_extend_w": 32, "ops": moves},
        {"self_extend_n": 3, "self_extend_w": 21, "ops": shifts},
        {"self_extend_n": 0, "self_extend_w": 0, "ops": shifts},
        {"self_extend_n": 8, "self_extend_w": 128, "ops": [decode(700), decode(230), decode(1), decode(1)]},
    ]


def main():
    parser = argparse.ArgumentParser(description="write sessions and their logits")
    parser.add_argument("model")
    parser.add_argument("prompts", type=pathlib.Path)
    args = parser.parse_args()
    model, folder = Model(args.model), pathlib.Path(__file__).parent
    rng = np.random.default_rng(1)
    longest = max(json.loads(args.prompts.read_text()), key=lambda p: p["n_tokens"])["prompt"]
    text = iter([0] + encode(model, longest) + rng.integers(1, 768, 4000).tolist())
    take = lambda n: [next(text) for _ in range(n)]
    written, logits = sessions(take), []
    for session in written:
        s = Session(model, session["self_extend_n"], session["self_extend_w"])
        for op, *arguments in session["ops"]:
            result = getattr(s, op)(*arguments)
            if op == "decode":
                logits.append(result)
    (folder / "sessions.json").write_text(json.dumps(written, separators=(",", ":")) + "\n")
    np.concatenate(logits).astype("<f4").tofile(folder / "logits.f32")


def encode(model, text):
    """Bytes as tokens: any ids do, these look a little like text."""
    ids = {token: i for i, token in enumerate(model.fields["tokenizer.ggml.tokens"])}
    return [ids[c.replace(" ", "\u0120")] for c in text if c.replace(" ", "\u0120") in ids]


if __name__ == "__main__":
    main()
