"""Asks llama.cpp's library for the pass keys of prompts, with its own Self-Extend operations.

    python3 peer.py MODEL PROMPTS N_TOKENS N W

Needs llama-cpp-python. The prompts of set "beyond" with N_TOKENS tokens are decoded in pieces of W;
before each piece the full windows are divided by llama_memory_seq_add and llama_memory_seq_div as
llama.cpp's own examples do it, then five tokens are picked greedily. Prints how many keys came
back.
"""

import argparse
import ctypes
import json
import pathlib

import llama_cpp as llama
import numpy as np


@llama.llama_log_callback
def silent(level, text, user):
    pass


class Session:
    def __init__(self, model_path):
        llama.llama_log_set(silent, ctypes.c_void_p(0))
        llama.llama_backend_init()
        of_model = llama.llama_model_default_params()
        of_model.n_gpu_layers = 0
        self.model = llama.llama_model_load_from_file(str(model_path).encode(), of_model)
        self.vocab = llama.llama_model_get_vocab(self.model)
        params = llama.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_threads, params.n_threads_batch = 1280, 1280, 1, 1
        self.context = llama.llama_init_from_model(self.model, params)
        self.memory = llama.llama_get_memory(self.context)
        self.batch = llama.llama_batch_init(1280, 0, 1)
        self.clear()

    def clear(self):
        llama.llama_memory_clear(self.memory, True)
        self.i = self.n_past = 0

    def tokenize(self, text):
        data, ids = text.encode(), (llama.llama_token * 4096)()
        n = llama.llama_tokenize(self.vocab, data, len(data), ids, len(ids), True, True)
        return list(ids[:n])

    def extend(self, n, w):
        while self.n_past >= self.i + w:
            ib, bd = n * self.i // w, w // n * (n - 1)
            lo, dd = self.i + ib * bd, w // n - ib * bd - w
            llama.llama_memory_seq_add(self.memory, 0, self.i, self.n_past, ib * bd)
            llama.llama_memory_seq_div(self.memory, 0, lo, lo + w, n)
            llama.llama_memory_seq_add(self.memory, 0, lo + w, self.n_past + ib * bd, dd)
            self.n_past -= bd
            self.i += w // n

    def decode(self, tokens):
        self.batch.n_tokens = len(tokens)
        for k, token in enumerate(tokens):
            self.batch.token[k], self.batch.pos[k] = token, self.n_past + k
            self.batch.n_seq_id[k], self.batch.seq_id[k][0] = 1, 0
            self.batch.logits[k] = k == len(tokens) - 1
        assert llama.llama_decode(self.context, self.batch) == 0
        self.n_past += len(tokens)

    def best(self):
        logits = llama.llama_get_logits_ith(self.context, -1)
        n = llama.llama_vocab_n_tokens(self.vocab)
        return int(np.argmax(np.ctypeslib.as_array(logits, (n,))))

    def piece(self, token):
        text = ctypes.create_string_buffer(64)
        n = llama.llama_token_to_piece(self.vocab, token, text, len(text), 0, False)
        return text.raw[:n].decode(errors="replace")


def answer(session, prompt, n, w):
    tokens, said = session.tokenize(prompt), ""
    session.clear()
    for start in range(0, len(tokens), w):
        session.extend(n, w)
        session.decode(tokens[start : start + w])
    for _ in range(5):
        token = session.best()
        said += session.piece(token)
        session.extend(n, w)
        session.decode([token])
    return said


def main():
    parser = argparse.ArgumentParser(description="pass keys by llama.cpp")
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("prompts", type=pathlib.Path)
    parser.add_argument("numbers", type=int, nargs=3)
    args = parser.parse_args()
    n_tokens, n, w = args.numbers
    session = Session(args.model)
    prompts = [
        p
        for p in json.loads(args.prompts.read_text())
        if p["set"] == "beyond" and p["n_tokens"] == n_tokens
    ]
    found = sum(answer(session, p["prompt"], n, w) == p["answer"] for p in prompts)
    by = f"llama-cpp-python {llama.__version__}"
    print(json.dumps({"found": found, "asked": len(prompts), "by": by}))


if __name__ == "__main__":
    main()
