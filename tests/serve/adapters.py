#!/usr/bin/env python3
"""Adapters by request of gpurun serve, beside texts of gpurun run: adapters.py GPURUN"""

import concurrent.futures
import itertools
import json
import pathlib
import random
import subprocess
import sys
import tempfile

import tiny
from served import LIMIT, Served

PROGRAM = sys.argv[1]
REF = ["--cpu-level", "ref", "-t", "2"]
SETS = [(0, 0), (1.5, 0), (0.5, -2)]


def write_adapter(path, seed, weights):
    """An adapter of these weights, each of so many inputs and outputs."""
    rank, rng = 2, random.Random(seed)
    meta = {"general.type": (tiny.STRING, "adapter"), "general.architecture": (tiny.STRING, "gpt2"), "adapter.type": (tiny.STRING, "lora"),
            "adapter.lora.alpha": (tiny.F32, rank * rng.choice((1.0, 2.0)))}
    tensors = []
    for name, n_in, n_out in weights:
        tensors += [(f"{name}.weight.lora_a", (n_in, rank)), (f"{name}.weight.lora_b", (rank, n_out))]
    tiny.write(path, meta, tensors)


def write_files(folder):
    e, ff = tiny.N_EMBD, tiny.N_FF
    tiny.write_decoder(folder / "model.gguf")
    write_adapter(folder / "a.gguf", 1, [("blk.0.ffn_up", e, ff), ("blk.1.attn_qkv", e, 3 * e)])
    write_adapter(folder / "b.gguf", 2, [("blk.0.attn_output", e, e), ("blk.1.ffn_down", ff, e)])
    return ["-m", str(folder / "model.gguf")], [str(folder / "a.gguf"), str(folder / "b.gguf")]


def text_of_run(model, files, scales, prompt, n):
    lora = ["--lora-scaled", ",".join(f"{f}:{s}" for f, s in zip(files, scales))]
    done = subprocess.run([PROGRAM, "run", *model, *lora, "-p", prompt, "-n", str(n), "--temp", "0", "--ignore-eos", "--json", "--no-warmup", "-q", *REF],
                          capture_output=True, timeout=LIMIT, check=True)
    return json.loads(done.stdout)["text"]


def of(scales):
    return [{"id": i, "scale": s} for i, s in enumerate(scales) if s]


def complete(s, prompt, n=24, **fields):
    got = s.post("/completion", {"prompt": prompt, "n_predict": n, "temperature": 0, "ignore_eos": True, **fields})
    return got["content"], got["tokens_cached"]


def mixed(model, files):
    """Requests of three sets at once, in any order, with equal and different prompts: each as alone."""
    asked = list(itertools.product(SETS, ("abc", "abcdefgh", "xyz" * 9))) * 3
    alone = {(scales, prompt): text_of_run(model, files, scales, prompt, 24) for scales, prompt in set(asked)}
    assert len({alone[scales, "abc"] for scales in SETS}) == 3, alone
    random.Random(5).shuffle(asked)
    with Served(PROGRAM, [*model, "--lora", ",".join(files), *REF, "-np", "6"]) as s, concurrent.futures.ThreadPoolExecutor(12) as pool:
        found = list(pool.map(lambda a: complete(s, a[1], lora=of(a[0]))[0], asked))
        wrong = [(a, text, alone[a]) for a, text in zip(asked, found) if text != alone[a]]
        assert not wrong, wrong[:2]


def in_turn(model, files):
    """A text of one set ends while those of others go on, and new ones of these come."""
    with Served(PROGRAM, [*model, "--lora", ",".join(files), *REF, "-np", "4", "--metrics"]) as s, concurrent.futures.ThreadPoolExecutor(2) as pool:
        long = [pool.submit(lambda k=k: [complete(s, "a" * (k + 1), 90, lora=of(SETS[k]))[0] for _ in range(4)]) for k in (0, 1)]
        complete(s, "b", 20, lora=of(SETS[2]))
        assert not any(f.done() for f in long)
        assert all(len(set(f.result())) == 1 for f in long)


def of_the_server(model, files):
    with Served(PROGRAM, [*model, "--lora", files[0], "--lora-scaled", f"{files[1]}:0", *REF]) as s:
        want = [{"id": 0, "path": files[0], "scale": 1}, {"id": 1, "path": files[1], "scale": 0}]
        assert s.get("/lora-adapters") == (200, want), s.get("/lora-adapters")
        assert complete(s, "abc")[0] == text_of_run(model, files, (1, 0), "abc", 24)
        assert s.post("/lora-adapters", of((0, 0.5))) == {"success": True}
        assert [a["scale"] for a in s.get("/v1/lora-adapters")[1]] == [0, 0.5]
        assert complete(s, "abc")[0] == text_of_run(model, files, (0, 0.5), "abc", 24)
        assert complete(s, "abc", lora=[])[0] == text_of_run(model, files, (0, 0), "abc", 24)
        for value, param in (("x", "lora"), ([1], "lora"), ([{"id": 0}], "lora"), ([{"id": 2, "scale": 1}], "lora.id"), ([{"id": -1, "scale": 1}], "lora.id"),
                             ([{"id": 0, "scale": "1"}], "lora.scale"), ([{"id": 0, "scale": 1e9}], "lora.scale")):
            status, error = s.refused("/completion", {"prompt": "a", "lora": value})
            assert status == 400 and error["param"] == param, (value, error)
            if isinstance(value, list):
                assert s.refused("/lora-adapters", value)[0] == 400
        assert s.refused("/lora-adapters", {})[0] == 400
        one = s.post("/sessions", {})["id"]
        complete(s, "abc", session=one)
        status, error = s.refused("/completion", {"prompt": "a", "session": one, "lora": of((1, 0))})
        assert status == 400 and "other adapters" in error["message"], error
        complete(s, "d", session=one, lora=of((0, 0.5)))
    with Served(PROGRAM, [*model, *REF]) as s:
        assert s.get("/lora-adapters") == (200, []) and complete(s, "abc", lora=[])[0] == text_of_run(model, files, (0, 0), "abc", 24)
        assert s.refused("/completion", {"prompt": "a", "lora": [{"id": 0, "scale": 1}]})[0] == 400


def of_a_folder(model, files):
    """The strengths are those of the usual model where --models-dir is given and a list has no room for a name."""
    path = pathlib.Path(model[1])
    folder = path.parent / "models"
    folder.mkdir()
    (folder / "other.gguf").symlink_to(path)
    with Served(PROGRAM, ["--models-dir", str(folder), "--lora", ",".join(files), *REF]) as s:
        assert s.refused("/lora-adapters", of((0, 0.5)))[0] == 400  # there is no usual one yet
        assert s.post("/models/load", {"model": "other"}) == {"success": True}
        assert s.post("/lora-adapters", of((0, 0.5))) == {"success": True}
        assert s.post("/lora-adapters?model=other", of((0, 0.25))) == {"success": True}
        assert [a["scale"] for a in s.get("/lora-adapters")[1]] == [0, 0.25]
        assert s.refused("/completion", [1])[0] == 400


def cells(model, files, folder):
    """Those of a set are for requests of that set, in memory, on disk and in slots."""
    prompt = list(range(259, 285)) * 3
    words = [*model, *REF, "-np", "1", "--cache-dir", str(folder / "cache"), "--slot-save-path", str(folder / "slots")]
    with Served(PROGRAM, [*words, "--lora", ",".join(files)]) as s:
        texts = [complete(s, prompt, 8, lora=of(scales)) for scales in SETS]
        assert [n for _, n in texts] == [0, 0, 0] and len({text for text, _ in texts}) == 3, texts
        for scales, (text, _) in zip(SETS, texts):
            assert complete(s, prompt, 8, lora=of(scales)) == (text, len(prompt) - 1), scales
        assert complete(s, prompt, 8, lora=of((0.25, 0)))[1] == 0
        complete(s, prompt, 8, lora=of(SETS[2]))
        assert s.post("/slots/0?action=save", {"filename": "x"})["n_saved"] == len(prompt) + 7
    with Served(PROGRAM, [*words, "--lora", ",".join(files[::-1])]) as s:  # the sets of the same files by other ids
        for scales, (text, _) in zip(SETS, texts):
            lora = [{"id": 1 - a["id"], "scale": a["scale"]} for a in of(scales)]
            first = complete(s, prompt, 8, lora=lora)
            assert first[0] == text, (scales, first)
    with Served(PROGRAM, [*words, "--lora", ",".join(files)]) as s:
        for scales, (text, _) in zip(SETS, texts):
            assert complete(s, prompt, 8, lora=of(scales)) == (text, len(prompt) - 1), scales
    with Served(PROGRAM, [*words[:-4], *words[-2:], "--lora", ",".join(files)]) as s:
        status, error = s.refused("/slots/0?action=restore", {"filename": "x", "lora": of(SETS[1])})
        assert status == 400 and "adapter" in error["message"], error
        s.post("/slots/0?action=restore", {"filename": "x", "lora": of(SETS[2])})
        assert complete(s, prompt, 8, lora=of(SETS[1]))[1] == 0
        assert complete(s, prompt, 8, lora=of(SETS[2])) == (texts[2][0], len(prompt) - 1)


with tempfile.TemporaryDirectory() as name:
    parts = write_files(pathlib.Path(name))
    for test in mixed, in_turn, of_the_server, of_a_folder:
        test(*parts)
    cells(*parts, pathlib.Path(name))
