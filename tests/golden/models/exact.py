#!/usr/bin/env python3
"""Logits of MPT models in f64, straight from the definition: no code is shared with gpurun or llama.cpp.

usage: exact.py BUILD_DIR       (BUILD_DIR/tests/write_tiny writes the model)
needs: pip install numpy gguf

llama.cpp looks GELU up in a table of binary16, so its logits tell little about a family that uses it (make.py). This
one is exact. The session is that of make.py; the cache is a list of cells, as in gpurun.
"""
import os, subprocess, sys, tempfile
import gguf
import numpy as np

def token(i):
    return (5 + 37 * i) % 96


class Model:
    def __init__(self, path):
        file = gguf.GGUFReader(path)
        self.w = {t.name: np.array(t.data, np.float64).reshape([int(n) for n in reversed(t.shape)])
                  for t in file.tensors}
        def key(name):
            return file.fields['mpt.' + name].contents()
        self.n_layer, self.heads, self.kv_heads = (
            int(key(k)) for k in ('block_count', 'attention.head_count', 'attention.head_count_kv'))
        self.eps, self.clamp = float(key('attention.layer_norm_epsilon')), float(key('attention.clamp_kqv'))
        bias = float(key('attention.max_alibi_bias'))
        self.slopes = [2.0 ** (-bias * (h + 1) / self.heads) for h in range(self.heads)]  # a power of two of them
        self.cells = []

    def norm(self, x, name):
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps)
        return x * self.w[name + '.weight'] + self.w.get(name + '.bias', 0)

    def linear(self, x, name):
        return x @ self.w[name + '.weight'].T + self.w.get(name + '.bias', 0)

    def attention(self, layer, q, pos, seq):
        """One token's heads over the cells that its sequence sees."""
        seen = [c for c in self.cells if seq in c['seq'] and c['pos'] <= pos]
        out = []
        for h in range(self.heads):
            of = h * self.kv_heads // self.heads
            k, v = (np.array([c[kv][layer][of] for c in seen]) for kv in 'kv')
            s = k @ q[h] / np.sqrt(len(q[h])) - self.slopes[h] * np.array([pos - c['pos'] for c in seen])
            p = np.exp(s - s.max())
            out.append(p @ v / p.sum())
        return np.concatenate(out)

    def decode(self, ids, pos, seqs):
        n = len(ids)
        x = self.w['token_embd.weight'][ids] + self.w['position_embd.weight'][pos]
        new = [{'pos': p, 'seq': {s}, 'k': {}, 'v': {}} for p, s in zip(pos, seqs)]
        self.cells += new
        for layer in range(self.n_layer):
            b = f'blk.{layer}.'
            f = self.linear(self.norm(x, b + 'attn_norm'), b + 'attn_qkv')
            f = np.clip(f, -self.clamp, self.clamp).reshape(n, self.heads + 2 * self.kv_heads, -1)
            q, k, v = np.split(f, [self.heads, self.heads + self.kv_heads], axis=1)
            for i in range(n):
                new[i]['k'][layer], new[i]['v'][layer] = k[i], v[i]
            a = np.array([self.attention(layer, q[i], pos[i], seqs[i]) for i in range(n)])
            x = x + self.linear(a, b + 'attn_output')
            u = self.linear(self.norm(x, b + 'ffn_norm'), b + 'ffn_up')
            u = 0.5 * u * (1 + np.tanh(np.sqrt(2 / np.pi) * (u + 0.044715 * u ** 3)))
            x = x + self.linear(u / self.w[b + 'ffn.act.scales'], b + 'ffn_down')
        return list(self.linear(self.norm(x, 'output_norm'), 'output'))


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    with tempfile.TemporaryDirectory() as tmp:
        subprocess.run([os.path.join(sys.argv[1], 'tests', 'write_tiny'), tmp], check=True)
        m = Model(os.path.join(tmp, 'mpt.gguf'))
    out = m.decode([token(i) for i in range(12)], list(range(12)), [0] * 12)
    for c in m.cells:
        c['seq'].add(1)
    out += m.decode([token(12), token(13)], [12, 12], [0, 1])
    for c in m.cells:  # remove 2 to 4 of sequence 0, then move what follows; shared cells move for both
        if 2 <= c['pos'] < 5:
            c['seq'].discard(0)
        elif c['pos'] >= 5 and 0 in c['seq']:
            c['pos'] -= 3
    out += m.decode([token(14)], [10], [0])
    np.array(out, '<f4').tofile(os.path.join(here, 'mpt-exact.f32'))


if __name__ == '__main__':
    main()
