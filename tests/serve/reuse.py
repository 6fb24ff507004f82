#!/usr/bin/env python3
"""--cache-reuse of gpurun serve: reuse.py GPURUN"""

import pathlib
import re
import sys
import tempfile

import tiny
from served import Served

PROGRAM = sys.argv[1]
REF = ["--cpu-level", "ref", "-t", "2", "--metrics"]
PART = list(range(40, 80))


def ask(s, prompt, **fields):
    got = s.post("/v1/completions", {"prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": True, **fields})
    return got["choices"][0]["text"], got["usage"]["prompt_tokens_details"]["cached_tokens"]


def moved(s):
    return int(re.search(r"^gpurun:prompt_tokens_moved_total (\d+)$", s.get("/metrics")[1], re.M)[1])


def asked_for():
    """By the flag and by the field; computed without both."""
    with Served(PROGRAM, REF) as s:
        ask(s, [5, 6, *PART, 7])
        text, cached = ask(s, [9, 10, 11, *PART, 8])
        assert cached == 0 and moved(s) == 0, cached
        other, cached = ask(s, [12, 13, 11, *PART, 8], n_cache_reuse=len(PART))
        assert cached == len(PART) + 1 and moved(s) == cached, cached  # 11 as well
        assert ask(s, [14, 15, 12, *PART, 8], n_cache_reuse=len(PART) + 1)[1] == 0
        for value in -1, "1", 1.5:
            status, error = s.refused("/v1/completions", {"prompt": "a", "n_cache_reuse": value})
            assert status == 400 and error["param"] == "n_cache_reuse", error
    with Served(PROGRAM, [*REF, "--cache-reuse", "30"]) as s:
        ask(s, [5, 6, *PART, 7])
        assert ask(s, [9, 10, 11, *PART, 8])[1] == len(PART)
        assert ask(s, [9, 10, 11, *PART, 8], n_cache_reuse=0) == (text, 3)  # what was not moved
        assert ask(s, [16, *PART[:25], 8])[1] == 0 and moved(s) == len(PART)


def cannot():
    """A model of learned positions: all is computed, and the flag is answered with a warning."""
    with tempfile.TemporaryDirectory() as name:
        path = pathlib.Path(name) / "tiny.gguf"
        tiny.write_decoder(path)
        with Served(PROGRAM, ["-m", str(path), *REF, "--cache-reuse", "4"]) as s:
            ask(s, [5, 6, *PART])
            assert ask(s, [9, 10, 11, *PART])[1] == 0 and moved(s) == 0
            assert any("--cache-reuse has no effect" in line for line in s.lines), s.lines


asked_for()
cannot()
