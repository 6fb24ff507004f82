#!/usr/bin/env python3
"""The cache of gpurun serve on disk, from one server to the next: cache_dir.py GPURUN"""

import json
import os
import pathlib
import signal
import sys
import tempfile
import time

from served import LIMIT, Served

PROGRAM = sys.argv[1]
FLAGS = ["--cpu-level", "ref", "-t", "2", "-np", "1"]
PROMPT = "Once upon a time there was a cat who lived in a house near the river, and every day it went out to look for fish. " * 2


def ask(s, prompt, key=None):
    c = s.connect()
    c.request("POST", "/v1/completions", json.dumps({"prompt": prompt, "max_tokens": 12, "temperature": 0}),
              {"Authorization": f"Bearer {key}"} if key else {})
    r = c.getresponse()
    answer = json.loads(r.read())
    c.close()
    assert r.status == 200, answer
    return answer["choices"][0]["text"], answer["usage"]["prompt_tokens_details"]["cached_tokens"], answer["usage"]["prompt_tokens"]


def after_an_end(folder):
    words = [*FLAGS, "--cache-dir", str(folder)]
    with Served(PROGRAM, FLAGS) as s:
        text, cached, n = ask(s, PROMPT)
        assert cached == 0 and n > 64, (cached, n)
    with Served(PROGRAM, words) as s:
        assert (got := ask(s, PROMPT)) == (text, 0, n), (got, n)
    assert s.code == 0 and any(folder.iterdir()), s.code
    with Served(PROGRAM, words) as s:
        assert (got := ask(s, PROMPT)) == (text, n - 1, n), (got, n)


def after_a_kill(folder):
    """What has left the cache is on disk, however the server ends."""
    words = [*FLAGS, "--cache-dir", str(folder)]
    with Served(PROGRAM, words) as s:
        answers = [ask(s, f"{i} times {PROMPT}") for i in range(5)]
        s.process.send_signal(signal.SIGKILL)
        s.process.wait(LIMIT)
    with Served(PROGRAM, words) as s:
        text, _, n = answers[2]
        assert (got := ask(s, f"2 times {PROMPT}")) == (text, n - 1, n), (got, answers)


def of_keys(folder):
    """Files are found by the key, wherever it stands in the list, and by no other one."""
    words = [*FLAGS, "--cache-dir", str(folder), "--api-key"]
    with Served(PROGRAM, [*words, "first,second"]) as s:
        text, _, n = ask(s, PROMPT, "second")
    with Served(PROGRAM, [*words, "second,third,fourth"]) as s:
        assert ask(s, PROMPT, "third") == (text, 0, n)
        assert (got := ask(s, PROMPT, "second")) == (text, n - 1, n), (got, n)


def two_servers(folder):
    """Servers at one folder find each other's files within seconds, and keep to its size together."""
    words = [*FLAGS, "--cache-dir", str(folder)]
    with Served(PROGRAM, words) as one, Served(PROGRAM, words) as two:
        text, _, n = [ask(one, f"{i} times {PROMPT}") for i in range(5)][2]  # it leaves the cache
        end = time.monotonic() + 30
        while sum(f.suffix == ".prefix" for f in folder.iterdir()) < 3 and time.monotonic() < end:
            time.sleep(0.05)
        time.sleep(3)
        ask(two, "a")  # looks at the folder
        assert (got := ask(two, f"2 times {PROMPT}")) == (text, n - 1, n), (got, text, n)
    size = max(f.stat().st_size for f in folder.iterdir())
    few = max(1 << 20, 3 * size)
    words += ["--cache-dir-bytes", str(few)]
    with Served(PROGRAM, words) as one, Served(PROGRAM, words) as two:
        for i in range(6):
            for s, name in (one, "one"), (two, "two"):
                ask(s, f"{name}, {i} times {PROMPT}")
        time.sleep(3)
        for s in (one, two):
            ask(s, "a")
            time.sleep(0.5)
        total = sum(f.stat().st_size for f in folder.iterdir())
        assert total <= few, (total, few)
    assert one.code == 0 and two.code == 0


def of_others(folder):
    """A folder of another user is refused, with one message."""
    if os.geteuid() == 0:
        os.chown(folder, 12345, 12345)
    else:
        folder.chmod(0o777)
    try:
        with Served(PROGRAM, [*FLAGS, "--cache-dir", str(folder)]):
            pass
    except SystemExit as e:
        assert "other user" in str(e).replace("another", "other") and str(e).count("error") == 1, e
    else:
        raise AssertionError("a folder of others is used")


def refused(folder):
    (folder / "file").write_text("x")
    try:
        with Served(PROGRAM, [*FLAGS, "--cache-dir", str(folder / "file")]):
            pass
    except SystemExit as e:
        assert "file" in str(e) and str(e).count("error") == 1, e
    else:
        raise AssertionError("a file is taken for a folder")


for test in (after_an_end, after_a_kill, of_keys, two_servers, of_others, refused):
    with tempfile.TemporaryDirectory() as name:
        test(pathlib.Path(name))
