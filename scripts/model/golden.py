"""Writes the evaluation sets of the default model; README.md there describes the files.

    python3 golden.py ../../tools/default-model.gguf ../../tests/golden/default-model

The model file is read for its tokenizer only.
"""

import argparse
import json
import pathlib
import random

from grammar import KEY_BLOCK, KEY_DIGITS, KEY_INTRO, KEY_QUESTION, Document, document, say_block
from reader import Model

SEED = 2_000_000_001  # far from the seeds of the training data, which are strings
N_HELDOUT = 400
N_TEXT = 150
FRAME_TOKENS = 66  # of a pass-key prompt without filler, with the start of text
BLOCK_TOKENS = 24  # of the well-known filler block; a random block has one more
MAX_BEFORE = 6  # blocks in front of the key
IN_CONTEXT = [(n_tokens, 15) for n_tokens in range(90, 235, BLOCK_TOKENS)]
BEYOND = [(282, 10), (354, 10), (498, 10), (714, 20), (930, 20)]
REMAINDERS = [(5 * 128 + remainder, 4) for remainder in range(2, 13)]


def passkey_prompt(rng, n_tokens):
    """(text, key): exactly n_tokens with the start of text; the key is after 0 to 6 blocks.

    The filler is the well-known block, with as many random ones as the length asks for. Positions
    are relative, so a key near the end of a long prompt is easy; these stay near its start.
    """
    filler = n_tokens - FRAME_TOKENS
    n_blocks, n_random = filler // BLOCK_TOKENS, filler % BLOCK_TOKENS
    key = "".join(rng.choices("0123456789", k=KEY_DIGITS))
    blocks = [KEY_BLOCK] * (n_blocks - n_random) + [random_block(rng) for _ in range(n_random)]
    rng.shuffle(blocks)
    before = rng.randint(0, min(n_blocks, MAX_BEFORE))
    blocks.insert(before, f" The pass key is {key}. Remember it. {key} is the pass key.")
    return KEY_INTRO + "".join(blocks) + KEY_QUESTION, key


def random_block(rng):
    d = Document(rng)
    say_block(d, known=False)
    return d.text


def passkey_set(rng, tokenizer, name, lengths):
    for n_tokens, n in lengths:
        for _ in range(n):
            text, key = passkey_prompt(rng, n_tokens)
            assert 1 + len(tokenizer.encode(text).ids) == n_tokens
            yield {"set": name, "n_tokens": n_tokens, "answer": key, "prompt": text}


def write_lines(file, records):
    """A JSON array with one record a line, so that differences can be read."""
    lines = [json.dumps(record, separators=(",", ":")) for record in records]
    file.write_text("[\n" + ",\n".join(lines) + "\n]\n")


def main():
    parser = argparse.ArgumentParser(description="write the evaluation sets")
    parser.add_argument("model")
    parser.add_argument("directory", type=pathlib.Path)
    args = parser.parse_args()
    model = Model(args.model)
    tokenizer = model.tokenizer()
    rng = random.Random(SEED)

    heldout = []
    for _ in range(N_HELDOUT):
        family, text, nats = document(rng)
        tokens = [model.bos] + tokenizer.encode(text).ids
        heldout.append({"family": family, "nats": round(nats, 6), "tokens": tokens})
    passkeys = [
        *passkey_set(rng, tokenizer, "context", IN_CONTEXT),
        *passkey_set(rng, tokenizer, "beyond", BEYOND),
        *passkey_set(rng, tokenizer, "remainder", REMAINDERS),
    ]
    text = "".join(document(rng)[1] for _ in range(N_TEXT))

    args.directory.mkdir(parents=True, exist_ok=True)
    write_lines(args.directory / "heldout.json", heldout)
    write_lines(args.directory / "passkey.json", passkeys)
    (args.directory / "perplexity.txt").write_text(text)


if __name__ == "__main__":
    main()
