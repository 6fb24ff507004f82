"""Writes a checkpoint of train.py as a GGUF file: matrices in F16, norms in F32.

    python3 export.py DIRECTORY ../../tools/default-model.gguf
"""

import argparse
import json
import pathlib

import gguf
import model
import numpy as np
import torch
from tokenizer import END_ID

DESCRIPTION = (
    "A tiny model of a synthetic language: short stories, questions about them, pass keys, copying "
    "and simple facts. Trained by the gpurun project for its tests and demonstrations."
)


def add_hyperparameters(writer):
    writer.add_name("gpurun default story model")
    writer.add_description(DESCRIPTION)
    writer.add_license("mit")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_vocab_size(model.N_VOCAB)
    writer.add_context_length(model.N_CTX)
    writer.add_embedding_length(model.N_EMBD)
    writer.add_block_count(model.N_LAYER)
    writer.add_feed_forward_length(model.N_FF)
    writer.add_head_count(model.N_HEAD)
    writer.add_head_count_kv(model.N_HEAD_KV)
    writer.add_layer_norm_rms_eps(model.RMS_EPS)
    writer.add_rope_dimension_count(model.D_HEAD)
    writer.add_rope_freq_base(model.ROPE_BASE)


def add_tokenizer(writer, file):
    bpe = json.loads(file.read_text())["model"]
    tokens = sorted(bpe["vocab"], key=bpe["vocab"].get)
    kinds = [gguf.TokenType.NORMAL] * len(tokens)
    kinds[END_ID] = gguf.TokenType.CONTROL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(pair) for pair in bpe["merges"]])
    writer.add_bos_token_id(END_ID)
    writer.add_eos_token_id(END_ID)
    writer.add_add_bos_token(True)


def main():
    parser = argparse.ArgumentParser(description="write the GGUF file")
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("file", type=pathlib.Path)
    args = parser.parse_args()
    checkpoint = torch.load(args.directory / "checkpoint.pt", weights_only=True)

    writer = gguf.GGUFWriter(args.file, "llama")
    add_hyperparameters(writer)
    add_tokenizer(writer, args.directory / "tokenizer.json")
    for name, weight in checkpoint["weights"].items():
        dtype = np.float16 if weight.ndim == 2 else np.float32
        writer.add_tensor(name, weight.numpy().astype(dtype))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    minutes = checkpoint["cpu_seconds"] / 60
    n_bytes = args.file.stat().st_size
    print(f"step {checkpoint['step']}, {minutes:.1f} CPU-minutes, {n_bytes} bytes")


if __name__ == "__main__":
    main()
