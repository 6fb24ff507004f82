"""Shapes of real models."""
import dataclasses


@dataclasses.dataclass
class Shape:
    name: str
    arch: str
    n_embd: int
    n_layer: int
    n_head: int
    n_head_kv: int
    d_head: int
    n_ff: int  # of one expert, where there are any
    n_vocab: int
    rope_base: float
    tied: bool = False  # the matrix that makes logits is the embedding
    n_expert: int = 0
    n_used: int = 0


SHAPES = {"llama-3.2-1b": Shape("Llama-3.2-1B", "llama", 2048, 16, 32, 8, 64, 8192, 128256, 5e5, tied=True),
          "llama-3-8b": Shape("Llama-3-8B", "llama", 4096, 32, 32, 8, 128, 14336, 128256, 5e5),
          "llama-2-7b": Shape("Llama-2-7B", "llama", 4096, 32, 32, 32, 128, 11008, 32000, 1e4),
          "qwen3-30b-a3b": Shape("Qwen3-30B-A3B", "qwen3moe", 2048, 48, 32, 4, 128, 768, 151936, 1e6, n_expert=128, n_used=8)}
