"""Judges the model file on the evaluation sets, in numpy, and writes the figures for other readers.

    python3 evaluate.py ../../tools/default-model.gguf ../../tests/golden/default-model

Prints the tables and writes reference.json beside the sets.
"""

import argparse
import collections
import json
import pathlib

import numpy as np
from grammar import KEY_DIGITS
from reader import GroupedPositions, Model, PlainPositions, Session, WindowPositions, log_softmax

BATCH = 20
STORY_PROMPT = "Once upon a time"
STORY_TOKENS = 64
SCHEMES = {
    "plain": PlainPositions,
    "-gan 4 -gaw 128": lambda: GroupedPositions(4, 128),
    "-gan 8 -gaw 128": lambda: GroupedPositions(8, 128),
    "window 4, 128": lambda: WindowPositions(4, 128),
    "window 8, 128": lambda: WindowPositions(8, 128),
}


def document_losses(model, documents):
    """-log p of each token list after its first token, as the model sees it."""
    losses = np.zeros(len(documents))
    order = np.argsort([len(d["tokens"]) for d in documents])
    for start in range(0, len(order), BATCH):
        rows = order[start : start + BATCH]
        lengths = [len(documents[row]["tokens"]) for row in rows]
        tokens = np.zeros((len(rows), max(lengths)), np.int64)
        for i, row in enumerate(rows):
            tokens[i, : lengths[i]] = documents[row]["tokens"]
        log_p = log_softmax(Session(model).decode(tokens[:, :-1]))
        of_target = np.take_along_axis(log_p, tokens[:, 1:, None], -1)[..., 0]
        for i, row in enumerate(rows):
            losses[row] = -of_target[i, : lengths[i] - 1].sum(dtype=np.float64)
    return losses


def heldout_table(model, documents):
    """A row for all and for each family: nats a token, and the excess with its standard error."""
    losses = document_losses(model, documents)
    true = np.array([d["nats"] for d in documents])
    n_tokens = np.array([len(d["tokens"]) - 1 for d in documents])
    families = np.array([d["family"] for d in documents])
    table = []
    for name in ["all", *dict.fromkeys(families)]:
        of = (families == name) | (name == "all")
        excess = losses[of] - true[of]
        table.append(
            {
                "family": str(name),
                "documents": int(of.sum()),
                "tokens": int(n_tokens[of].sum()),
                "true": round(true[of].sum() / n_tokens[of].sum(), 6),
                "model": round(losses[of].sum() / n_tokens[of].sum(), 6),
                "excess_a_document": round(excess.mean(), 4),
                "standard_error": round(excess.std(ddof=1) / of.sum() ** 0.5, 4),
            }
        )
    return table


def passkey_table(model, prompts):
    """How many keys come back exactly: a row for each set and length, a count for each scheme."""
    tokenizer = model.tokenizer()
    groups = collections.defaultdict(list)
    for prompt in prompts:
        groups[prompt["set"], prompt["n_tokens"]].append(prompt)
    table = []
    for (name, n_tokens), group in groups.items():
        ids = np.array([[model.bos] + tokenizer.encode(p["prompt"]).ids for p in group])
        found = {}
        for scheme, positions in SCHEMES.items():
            picked, _ = Session(model, positions()).greedy(ids, KEY_DIGITS)
            answers = [tokenizer.decode(row) for row in picked]
            found[scheme] = sum(a == p["answer"] for a, p in zip(answers, group))
        table.append({"set": name, "n_tokens": n_tokens, "of": len(group), "found": found})
    return table


def greedy_story(model):
    tokenizer = model.tokenizer()
    prompt = [model.bos] + tokenizer.encode(STORY_PROMPT).ids
    picked, lead = Session(model).greedy(np.array([prompt]), STORY_TOKENS)
    return {
        "prompt": STORY_PROMPT,
        "tokens": picked[0].tolist(),
        "text": tokenizer.decode(picked[0]),
        "smallest_lead": round(lead, 4),
    }


def perplexity(model, text, n_ctx):
    """Disjoint chunks of n_ctx tokens, each with the start of text as its first; the second half of
    each is scored, as llama.cpp's perplexity tool does."""
    ids = [model.bos] + model.tokenizer().encode(text).ids
    n_chunk = len(ids) // n_ctx
    chunks = np.array(ids[: n_chunk * n_ctx]).reshape(n_chunk, n_ctx)
    inputs = chunks.copy()
    inputs[:, 0] = model.bos
    first = n_ctx // 2
    losses = []
    for row, targets in zip(inputs, chunks):
        log_p = log_softmax(Session(model).decode(row[None])[0, first:-1])
        losses.append(-np.take_along_axis(log_p, targets[first + 1 :, None], -1))
    value = np.exp(np.concatenate(losses).mean(dtype=np.float64))
    return {"n_ctx": n_ctx, "chunks": n_chunk, "perplexity": round(float(value), 6)}


def print_tables(reference):
    for row in reference["heldout"]:
        print(
            "{family:8} {documents:4} documents {tokens:6} tokens  true {true:.4f}"
            "  model {model:.4f}".format(**row),
            f" ratio {row['model'] / row['true']:.3f}",
            f" excess {row['excess_a_document']:+.3f} +- {row['standard_error']:.3f} a document",
        )
    for row in reference["passkey"]:
        found = "  ".join(f"{scheme}: {n:2}" for scheme, n in row["found"].items())
        print("{set:10} {n_tokens:4} tokens, {of} prompts; ".format(**row) + found)
    for row in reference["perplexity"]:
        print("perplexity {perplexity:.4f}, -c {n_ctx}, {chunks} chunks".format(**row))
    print(reference["story"]["prompt"] + reference["story"]["text"])


def main():
    parser = argparse.ArgumentParser(description="judge the model file")
    parser.add_argument("model")
    parser.add_argument("directory", type=pathlib.Path)
    args = parser.parse_args()
    model = Model(args.model)
    text = (args.directory / "perplexity.txt").read_text()
    reference = {
        "heldout": heldout_table(model, json.loads((args.directory / "heldout.json").read_text())),
        "passkey": passkey_table(model, json.loads((args.directory / "passkey.json").read_text())),
        "perplexity": [perplexity(model, text, n_ctx) for n_ctx in (256, 1024)],
        "story": greedy_story(model),
    }
    print_tables(reference)
    (args.directory / "reference.json").write_text(json.dumps(reference, indent=1) + "\n")


if __name__ == "__main__":
    main()
