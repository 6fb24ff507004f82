"""A folder of a test with a cache of its own, runs of the program in it, and what is expected of them."""

import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import time

import hub as hubs

PROGRAM, SOURCE = sys.argv[1], pathlib.Path(sys.argv[2])
LIMIT = 120  # seconds of a run
REPO = "ann/Story-GGUF"
bad = []
at = ""  # the test that runs
hub = hubs.Hub()
top = tempfile.TemporaryDirectory()


def blob(name, n=300_000):
    """Bytes that begin as a GGUF file does."""
    return b"GGUF" + random.Random(name).randbytes(n - 4)


class Place:
    """A cache of its own, and runs of the program on it."""
    count = 0

    def __init__(self):
        Place.count += 1
        self.dir = pathlib.Path(top.name) / str(Place.count)
        self.dir.mkdir()
        self.cache = self.dir / "cache"
        self.variables = {"LLAMA_CACHE": str(self.cache), "HF_ENDPOINT": hub.url, "GR_TEST_WAITS": "100", "NO_PROXY": "*"}

    def env(self, more):
        kept = {k: v for k, v in os.environ.items() if not re.match(r"(HF_|HUGGING|LLAMA_|MODEL_|GPURUN_|XDG_|https?_proxy)", k)}
        env = {**kept, "HOME": str(self.dir), **self.variables, **(more or {})}
        return {k: v for k, v in env.items() if v is not None}

    def start(self, *words, env=None):
        return subprocess.Popen([PROGRAM, *map(str, words)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, env=self.env(env), cwd=self.dir)

    def run(self, *words, env=None):
        p = self.start(*words, env=env)
        out, err = p.communicate(timeout=LIMIT)
        return p.returncode, out, err

    def good(self, *words, env=None):
        code, out, err = self.run(*words, env=env)
        expect(f"{words}: exit code 0", code == 0, (code, out, err))
        return out, err

    def fails(self, code, text, *words, env=None):
        got, out, err = self.run(*words, env=env)
        lines = [l for l in err.splitlines() if l.startswith("gpurun: error: ")]
        expect(f"{words}: exit code {code}, one error with '{text}'", got == code and len(lines) == 1 and text in lines[0],
               (got, out, err))
        return err

    def pulled(self, data, *words, env=None):
        """The path that pull prints, which has this content."""
        out, err = self.good("pull", *words, env=env)
        path = pathlib.Path(out.strip())
        expect(f"pull {words}: the bytes", path.is_file() and path.read_bytes() == data, (out, err))
        return path

    def blobs(self):
        folder = self.repo() / "blobs"
        return sorted(p.name for p in folder.iterdir()) if folder.exists() else []

    def repo(self, name=REPO):
        return self.cache / ("models--" + name.replace("/", "--"))


def expect(what, ok, found=""):
    if not ok:
        bad.append(what)
        print(f"{at}: {what}: found {found!r}"[:3000], flush=True)


def wait_for(what, seconds=20):
    end = time.monotonic() + seconds
    while not what() and time.monotonic() < end:
        time.sleep(0.005)
    return what()


def ranges(text=""):
    return [r[2].get("Range") for r in hub.requests(text=text)]
