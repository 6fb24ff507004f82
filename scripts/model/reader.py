"""A llama GGUF file in numpy: tokenizer, forward pass over a cache, Self-Extend.

It reads the file that is shipped and shares no code with the training, so it is a second opinion on
both. All sequences of a session have the same length, and so the same positions.
"""

import gguf
import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers


class Model:
    def __init__(self, file):
        reader = gguf.GGUFReader(file)

        def field(name):
            return reader.fields[name].contents()

        self.n_ctx = field("llama.context_length")
        self.n_layer = field("llama.block_count")
        self.n_head = field("llama.attention.head_count")
        self.n_head_kv = field("llama.attention.head_count_kv")
        self.eps = field("llama.attention.layer_norm_rms_epsilon")
        d_head = field("llama.rope.dimension_count")
        base = field("llama.rope.freq_base")
        self.frequency = base ** (-np.arange(0, d_head, 2) / d_head)
        self.weights = {t.name: t.data.astype(np.float32) for t in reader.tensors}
        self.bos = field("tokenizer.ggml.bos_token_id")
        self.tokens = field("tokenizer.ggml.tokens")
        self.merges = [tuple(m.split(" ")) for m in field("tokenizer.ggml.merges")]

    def tokenizer(self):
        """With the plain pre-tokenizer "gpt-2", as the file says: digits are not split here."""
        tokenizer = Tokenizer(models.BPE({t: i for i, t in enumerate(self.tokens)}, self.merges))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        return tokenizer


class PlainPositions:
    """Cell i is at position i."""

    chunk = 256

    def __init__(self):
        self.cells = np.zeros(0, np.int64)
        self.n_past = 0

    def make_room(self):
        pass

    def append(self, n):
        new = self.n_past + np.arange(n)
        self.cells = np.concatenate([self.cells, new])
        self.n_past += n
        return new

    def scores(self, rotate, q, k, new):
        return product(rotate(q, new), rotate(k, self.cells))


class GroupedPositions(PlainPositions):
    """Self-Extend as a remap of the cache: full windows of w positions are divided by n.

    The prompt is decoded in chunks of w tokens, and before each decode the windows that are full
    are compressed, in the order shift, divide, shift back.
    """

    def __init__(self, n, w):
        super().__init__()
        self.n, self.w, self.chunk, self.i = n, w, w, 0

    def make_room(self):
        while self.n_past >= self.i + self.w:
            ib = self.n * self.i // self.w
            bd = self.w // self.n * (self.n - 1)
            dd = self.w // self.n - ib * bd - self.w
            lo = self.i + ib * bd
            self.change(self.i, self.n_past, lambda p: p + ib * bd)
            self.change(lo, lo + self.w, lambda p: p // self.n)
            self.change(lo + self.w, self.n_past + ib * bd, lambda p: p + dd)
            self.n_past -= bd
            self.i += self.w // self.n

    def change(self, lo, hi, new):
        inside = (self.cells >= lo) & (self.cells < hi)
        self.cells = np.where(inside, new(self.cells), self.cells)


class WindowPositions(PlainPositions):
    """Self-Extend as published: the last w tokens exact, positions floor(p / n) beyond."""

    def __init__(self, n, w):
        super().__init__()
        self.n, self.w = n, w

    def scores(self, rotate, q, k, new):
        exact = super().scores(rotate, q, k, new)
        shift = self.w - self.w // self.n
        grouped = product(rotate(q, new // self.n + shift), rotate(k, self.cells // self.n))
        return np.where(new[:, None] - self.cells < self.w, exact, grouped)


def product(q, k):
    """q [n_row, n_head_kv, group, n_tok, d], k [n_row, n_head_kv, n_cell, d] -> [.., n_cell]"""
    return q @ k[:, :, None].swapaxes(-1, -2)


class Session:
    """A cache of values and unrotated keys; keys are rotated at use, which makes remaps exact."""

    def __init__(self, model, positions=None):
        self.model = model
        self.positions = positions or PlainPositions()
        self.keys = [None] * model.n_layer
        self.values = [None] * model.n_layer

    def prompt(self, tokens):
        """Decodes tokens [n_row, n_tok] in the chunks of the position scheme; the last logits."""
        for start in range(0, tokens.shape[1], self.positions.chunk):
            logits = self.decode(tokens[:, start : start + self.positions.chunk])
        return logits[:, -1]

    def greedy(self, tokens, n):
        """The n most probable next tokens [n_row, n], and the smallest lead over the second."""
        logits, picked, lead = self.prompt(tokens), [], np.inf
        for i in range(n):
            first_two = np.sort(logits, -1)[:, -2:]
            lead = min(lead, (first_two[:, 1] - first_two[:, 0]).min())
            picked.append(logits.argmax(-1))
            if i + 1 < n:
                logits = self.decode(picked[-1][:, None])[:, -1]
        return np.stack(picked, 1), float(lead)

    def decode(self, tokens):
        """Logits [n_row, n_tok, n_vocab] of the next tokens [n_row, n_tok]."""
        self.positions.make_room()
        new = self.positions.append(tokens.shape[1])
        w = self.model.weights
        x = w["token_embd.weight"][tokens]
        for il in range(self.model.n_layer):
            x = x + self.attention(il, self.norm(x, f"blk.{il}.attn_norm"), new)
            h = self.norm(x, f"blk.{il}.ffn_norm")
            gate = h @ w[f"blk.{il}.ffn_gate.weight"].T
            up = h @ w[f"blk.{il}.ffn_up.weight"].T
            x = x + (gate / (1 + np.exp(-gate)) * up) @ w[f"blk.{il}.ffn_down.weight"].T
        return self.norm(x, "output_norm") @ w["token_embd.weight"].T

    def norm(self, x, name):
        scale = np.sqrt(np.square(x).mean(-1, keepdims=True) + self.model.eps)
        return x / scale * self.model.weights[f"{name}.weight"]

    def rotate(self, x, positions):
        angle = np.outer(positions, self.model.frequency)
        cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
        even, odd = x[..., 0::2], x[..., 1::2]
        return np.stack([even * cos - odd * sin, even * sin + odd * cos], -1).reshape(x.shape)

    def attention(self, il, x, new):
        n_row, n_tok, _ = x.shape
        n_head, n_head_kv = self.model.n_head, self.model.n_head_kv

        def project(name, n):
            y = x @ self.model.weights[f"blk.{il}.attn_{name}.weight"].T
            return y.reshape(n_row, n_tok, n, -1).swapaxes(1, 2)

        def append(cache, fresh):
            cache[il] = fresh if cache[il] is None else np.concatenate([cache[il], fresh], 2)
            return cache[il]

        k = append(self.keys, project("k", n_head_kv))
        v = append(self.values, project("v", n_head_kv))
        q = project("q", n_head).reshape(n_row, n_head_kv, n_head // n_head_kv, n_tok, -1)
        scores = self.positions.scores(self.rotate, q, k, new) / np.sqrt(q.shape[-1])
        scores = np.where(self.positions.cells <= new[:, None], scores, -np.inf)
        share = np.exp(scores - scores.max(-1, keepdims=True))
        share /= share.sum(-1, keepdims=True)
        y = (share @ v[:, :, None]).reshape(n_row, n_head, n_tok, -1)
        y = y.swapaxes(1, 2).reshape(n_row, n_tok, -1)
        return y @ self.model.weights[f"blk.{il}.attn_output.weight"].T


def log_softmax(logits):
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
