#!/usr/bin/env python3
"""Tasks of EleutherAI's lm-eval on the server, and the same figures from logits of gpurun replay: lm_eval_tasks.py GPURUN. Exits with 77 where
PyPI's lm-eval or what its models need is not installed."""

import importlib.metadata
import importlib.util
import json
import math
import os
import pathlib
import sys
import tempfile

missing = [name for name in ("lm_eval", "datasets", "numpy", "requests", "aiohttp", "tenacity", "tqdm") if not importlib.util.find_spec(name)]
if missing:
    print("skipped:", ", ".join(missing), "of PyPI not installed")
    sys.exit(77)

from served import Served
import generate

CHOICES = [("Once upon a time there was a clever", [" bear", " kite", " until"], 0), ("One rainy morning, Lily went to the", [" said", " river", "."], 1),
           ("They were best", [" upon", " behind", " friends"], 2), ("She loved to", [" read", " rock", " named"], 0),
           ("From that day on, they were", [" went to the park", " best friends"], 1), ("Once upon", [" a time", " the moon came up", " dog"], 0)]
STORIES = ["Once upon a time, there was a clever bear named Lily. She lived near the park. She loved to read.",
           "One rainy morning, Lily went to the river and found a green kite behind a rock. She was very happy."]
CHOICE_TASK = """task: stories_choice
dataset_path: json
dataset_kwargs: {data_files: {test: FOLDER/choices.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{context}}"
doc_to_choice: "{{choices}}"
doc_to_target: right
target_delimiter: ""
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""
WORDS_TASK = """task: stories_words
dataset_path: json
dataset_kwargs: {data_files: {test: FOLDER/stories.jsonl}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: word_perplexity}]
"""


# ---- the figures, without the server ----

def ids_of(text, *words):
    return json.loads(generate.run("tokenize", "-p", text, "--ids", *words))


def log_probabilities(folder, ids):
    """[i][token]: of token i + 1 after the tokens up to i."""
    import numpy as np

    session = folder / "session.json"
    n = len(ids)
    session.write_text(json.dumps({"context": {"n_ctx": 256, "n_batch": 256, "n_seq_max": 1},
                                   "ops": [{"op": "decode", "tokens": ids, "pos": list(range(n)), "seq": [[0]] * n, "logits": [1] * n}]}))
    generate.run("replay", str(session), "-o", str(folder), *generate.REF)
    logits = np.load(folder / "logits_0.npy").astype(np.float64)
    top = logits.max(axis=1, keepdims=True)
    return logits - top - np.log(np.exp(logits - top).sum(axis=1, keepdims=True))


def judged(folder, ids, n_context):
    """Log-likelihood of the tokens behind the context, and whether each is the likeliest."""
    rows = log_probabilities(folder, ids)
    at = range(n_context, len(ids))
    return sum(float(rows[i - 1][ids[i]]) for i in at), all(int(rows[i - 1].argmax()) == ids[i] for i in at)


def choices_alone(folder, *words):
    """[[(log-likelihood, greedy) of each choice]]"""
    return [[judged(folder, ids_of(context + c, *words), len(ids_of(context, *words))) for c in choices] for context, choices, _ in CHOICES]


# ---- and with it ----

def evaluate(folder, kind, task, **args):
    import lm_eval
    from lm_eval.tasks import TaskManager

    done = lm_eval.simple_evaluate(model=kind, model_args=args, tasks=[task], log_samples=True, bootstrap_iters=0,
                                   task_manager=TaskManager(include_path=str(folder), include_defaults=False))
    samples = sorted(done["samples"][task], key=lambda x: x["doc_id"])
    return done["results"][task], [x["filtered_resps"] for x in samples]


def test_choices(folder, url):
    for model, words, args in (("local-completions", ["--no-bos"], {"model": "m", "base_url": url + "/v1/completions", "max_length": 256}),
                               ("local-completions", ["--no-bos"], {"model": "m", "base_url": url + "/v1/completions", "max_length": 256, "num_concurrent": 4}),
                               ("gguf", [], {"base_url": url})):
        want = choices_alone(folder, *words)
        result, found = evaluate(folder, model, "stories_choice", **args)
        assert len(found) == len(want)
        for of, alone in zip(found, want):
            for (x, greedy), (y, likeliest) in zip(of, alone, strict=True):
                assert math.isclose(float(x), y, rel_tol=1e-4, abs_tol=1e-4) and (model == "gguf" or greedy == likeliest), (model, of, alone)
        best = [max(range(len(x)), key=lambda i: x[i][0]) for x in want]
        share = sum(b == right for b, (_, _, right) in zip(best, CHOICES)) / len(CHOICES)
        assert math.isclose(result["acc,none"], share) and 0.5 < share, (model, result, share)
        print(f"{model}: {sum(map(len, found))} log-likelihoods, accuracy {share:.2f}")


def test_words(folder, url):
    result, found = evaluate(folder, "local-completions", "stories_words", model="m", base_url=url + "/v1/completions", max_length=256)
    want = [judged(folder, ids_of(text), 1)[0] for text in STORIES]
    for x, y in zip(found, want, strict=True):
        assert math.isclose(float(x[0]), y, rel_tol=1e-4), (found, want)
    perplexity = math.exp(-sum(want) / sum(len(text.split()) for text in STORIES))
    assert math.isclose(result["word_perplexity,none"], perplexity, rel_tol=1e-4), (result, perplexity)
    print(f"local-completions: word perplexity {perplexity:.4f}")


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        os.environ |= {"HF_DATASETS_OFFLINE": "1", "HF_HUB_OFFLINE": "1", "HF_HOME": name}
        for task, text in (("choice", CHOICE_TASK), ("words", WORDS_TASK)):
            (folder / f"{task}.yaml").write_text(text.replace("FOLDER", name))
        (folder / "choices.jsonl").write_text("".join(json.dumps({"context": c, "choices": x, "right": i}) + "\n" for c, x, i in CHOICES))
        (folder / "stories.jsonl").write_text("".join(json.dumps({"text": x}) + "\n" for x in STORIES))
        with Served(sys.argv[1], [*generate.REF, "-c", "256"]) as s:
            test_choices(folder, s.url)
            test_words(folder, s.url)
    print("lm-eval", importlib.metadata.version("lm_eval"))


main()
