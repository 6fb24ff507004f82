"""The default model in torch: a dictionary of weights under their GGUF names, and two functions.

`init` makes the weights, `forward` is the llama graph. The shape is small, but every width is a
multiple of 256, so that the model can be stored in every quantised format.
"""

import math
import os
import sys

# See setup-torch.sh: the CUDA libraries behind torch are empty, which lazy binding forgives.
sys.setdlopenflags(os.RTLD_LAZY | os.RTLD_GLOBAL)

import torch
import torch.nn.functional as F

N_VOCAB = 768
N_CTX = 256
N_LAYER = 3
N_EMBD = 256
N_FF = 512
N_HEAD = 4
N_HEAD_KV = 2
D_HEAD = 64
RMS_EPS = 1e-5
ROPE_BASE = 10000.0

EMBD_STD = 0.1
CONSTANT = 8 * EMBD_STD  # the value of coordinate 0 of every embedding at the start
PEAK_LOGIT = 30.0  # of the heads that attend to a fixed distance, at that distance


def rope_frequencies():
    return ROPE_BASE ** (-torch.arange(0, D_HEAD, 2) / D_HEAD)


def init(seed):
    """Weights from which retrieval is learned within minutes; nothing of the structure is frozen.

    A small transformer discovers "find the same thing earlier and copy what followed" late or
    never. So it starts near it: queries match keys of equal content, an attention output writes
    back what its value read, and two heads of the first layer attend one and two tokens back.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(rows, columns, std):
        return torch.randn(rows, columns, generator=generator) * std

    std = N_EMBD**-0.5
    residual_scale = (2 * N_LAYER) ** -0.5
    group = N_HEAD // N_HEAD_KV

    def repeat_heads(kv):
        """[n_head_kv * d_head, n_embd] -> [n_head * d_head, n_embd], each KV head for its group."""
        return kv.view(N_HEAD_KV, D_HEAD, N_EMBD).repeat_interleave(group, 0).reshape(-1, N_EMBD)

    embd = normal(N_VOCAB, N_EMBD, EMBD_STD)
    embd[:, 0] = CONSTANT
    w = {"token_embd.weight": embd, "output_norm.weight": torch.ones(N_EMBD)}
    for il in range(N_LAYER):
        k = normal(N_HEAD_KV * D_HEAD, N_EMBD, std)
        v = normal(N_HEAD_KV * D_HEAD, N_EMBD, std)
        q = repeat_heads(k) + 0.3 * normal(N_HEAD * D_HEAD, N_EMBD, std)
        for matrix in (q, k, v):
            matrix[:, 0] = 0
        if il == 0:
            attend_back(q, k)
        w |= {
            f"blk.{il}.attn_norm.weight": torch.ones(N_EMBD),
            f"blk.{il}.attn_q.weight": q,
            f"blk.{il}.attn_k.weight": k,
            f"blk.{il}.attn_v.weight": v,
            f"blk.{il}.attn_output.weight": repeat_heads(v).T.contiguous() * residual_scale,
            f"blk.{il}.ffn_norm.weight": torch.ones(N_EMBD),
            f"blk.{il}.ffn_gate.weight": normal(N_FF, N_EMBD, std),
            f"blk.{il}.ffn_up.weight": normal(N_FF, N_EMBD, std),
            f"blk.{il}.ffn_down.weight": normal(N_EMBD, N_FF, 0.3 * residual_scale * N_FF**-0.5),
        }
    return w


def attend_back(q, k):
    """Makes query heads 0 and 1 attend one and two tokens back, whatever the tokens are.

    Key head 0 reads the constant coordinate alone, and the queries are the same vector rotated back
    by the distance. High frequencies weigh more, which makes the peak over distances narrow.
    """
    frequency = rope_frequencies()
    share = frequency**0.5 / (frequency**0.5).sum()
    rms = math.sqrt((CONSTANT**2 + (N_EMBD - 1) * EMBD_STD**2) / N_EMBD)
    amplitude = (PEAK_LOGIT * D_HEAD**0.5 * share).sqrt() / (CONSTANT / rms)
    for head, distance in [(None, 0), (0, 1), (1, 2)]:
        matrix, row = (k, 0) if head is None else (q, head * D_HEAD)
        matrix[row : row + D_HEAD] = 0
        matrix[row : row + D_HEAD : 2, 0] = amplitude * torch.cos(distance * frequency)
        matrix[row + 1 : row + D_HEAD : 2, 0] = -amplitude * torch.sin(distance * frequency)


def rms_norm(x, weight):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + RMS_EPS) * weight


def rope(x):
    """Rotates the pairs (2i, 2i+1) of x [n_row, n_tok, n_head, d_head] by position * frequency."""
    angle = torch.outer(torch.arange(x.shape[1]), rope_frequencies())
    turn = torch.polar(torch.ones_like(angle), angle)[:, None, :]
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * turn).flatten(-2).to(x.dtype)


def attention(w, il, x):
    """Causal attention, spelled out: its backward pass is twice as fast as the fused one here."""
    n_row, n_tok, _ = x.shape

    def project(name, n_head):
        return F.linear(x, w[f"blk.{il}.attn_{name}.weight"]).view(n_row, n_tok, n_head, D_HEAD)

    def by_head(heads):
        """[n_row, n_tok, n_head or n_head_kv, d_head] -> [n_row * n_head, n_tok, d_head]"""
        heads = heads.repeat_interleave(N_HEAD // heads.shape[2], 2)
        return heads.transpose(1, 2).flatten(0, 1)

    q, k = by_head(rope(project("q", N_HEAD))), by_head(rope(project("k", N_HEAD_KV)))
    v = by_head(project("v", N_HEAD_KV))
    mask = torch.full((n_tok, n_tok), -math.inf, dtype=q.dtype).triu(1)
    share = F.softmax(torch.baddbmm(mask, q, k.transpose(1, 2), alpha=D_HEAD**-0.5), -1)
    y = torch.bmm(share, v).view(n_row, N_HEAD, n_tok, D_HEAD).transpose(1, 2).flatten(2)
    return F.linear(y, w[f"blk.{il}.attn_output.weight"])


def feed_forward(w, il, x):
    gate = F.silu(F.linear(x, w[f"blk.{il}.ffn_gate.weight"]))
    up = F.linear(x, w[f"blk.{il}.ffn_up.weight"])
    return F.linear(gate * up, w[f"blk.{il}.ffn_down.weight"])


def forward(w, tokens):
    """Logits [n_row, n_tok, n_vocab] of tokens [n_row, n_tok]; every row begins at position 0."""
    x = F.embedding(tokens, w["token_embd.weight"])
    for il in range(N_LAYER):
        x = x + attention(w, il, rms_norm(x, w[f"blk.{il}.attn_norm.weight"]))
        x = x + feed_forward(w, il, rms_norm(x, w[f"blk.{il}.ffn_norm.weight"]))
    return F.linear(rms_norm(x, w["output_norm.weight"]), w["token_embd.weight"])
