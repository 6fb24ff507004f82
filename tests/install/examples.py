#!/usr/bin/env python3
"""The examples of include/, built with the installed files alone: examples.py BUILD SOURCE CMAKE CC SANITIZERS.

The output of each is compared with that of the program gpurun, or with values computed from it here. All but those with draws
take the token of the largest logit, of texts where another one is far: rounding does not matter."""

import json
import math
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile

BUILD, SOURCE, CMAKE, CC, SANITIZERS = sys.argv[1:6]
MODEL = f"{SOURCE}/tools/default-model.gguf"
PROMPT = "Once upon a time"
MOST_LINES = 40
bad = []


def fail(text):
    bad.append(text)
    print(text)


def install(folder):
    """Installs to the folder and builds every example there; returns the environment that they need."""
    subprocess.run([CMAKE, "--install", BUILD, "--prefix", folder], check=True, stdout=subprocess.DEVNULL)
    lib = next(folder.rglob("gpurun.pc")).parent.parent
    env = dict(os.environ, LD_LIBRARY_PATH=str(lib), PKG_CONFIG_PATH=f"{lib}/pkgconfig")
    flags = subprocess.run(["pkg-config", "--cflags", "--libs", "gpurun"], check=True, capture_output=True, text=True, env=env)
    strict = ["-std=c11", "-Wall", "-Wextra", "-Wshadow", "-Wstrict-prototypes", "-Werror"]
    strict += [f"-fsanitize={SANITIZERS}"] if SANITIZERS else []
    for source in sorted(pathlib.Path(SOURCE, "include/examples").glob("*.c")):
        if len(source.read_text().splitlines()) > MOST_LINES:
            fail(f"{source.name}: more than {MOST_LINES} lines")
        subprocess.run([CC, *strict, source, "-o", folder / source.stem, *flags.stdout.split(), "-lm"], check=True)
    return env


def add_metadata(path, values):
    """Writes the built-in model with more metadata, floats, integers or strings, before its own."""
    def string(text):
        return struct.pack("<Q", len(text.encode())) + text.encode()

    def pair(key, value):
        kind = {float: (6, "<f"), int: (5, "<i")}.get(type(value))
        body = struct.pack("<I", kind[0]) + struct.pack(kind[1], value) if kind else struct.pack("<I", 8) + string(value)
        return string(key) + body

    data = pathlib.Path(MODEL).read_bytes()
    magic, version, n_tensors, n_pairs = struct.unpack("<4sIQQ", data[:24])
    more = b"".join(pair(k, v) for k, v in values.items())
    more += pair("test.pad", "x" * (-(len(more) + len(pair("test.pad", ""))) % 32))  # what follows stays aligned
    path.write_bytes(struct.pack("<4sIQQ", magic, version, n_tensors, n_pairs + len(values) + 1) + more + data[24:])
    return str(path)


def gpurun(*words, text=None):
    command = [f"{BUILD}/gpurun", *words, "-q"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True, timeout=120).stdout


def greedy(prompt, n, *words):
    return gpurun("run", "-m", MODEL, "-p", prompt, "-n", str(n), "--temp", "0", "--no-warmup", "--no-escape", *words)


class Examples:
    def __init__(self, folder, env):
        self.folder, self.env, self.run_names = folder, env, set()

    def run(self, name, *words):
        self.run_names.add(name)
        return subprocess.run([self.folder / name, *words], capture_output=True, text=True, env=self.env, timeout=120)

    def expect(self, name, words, text, said=""):
        got = self.run(name, *words)
        if got.returncode or got.stdout != text or said not in got.stderr:
            fail(f"{name} {words}: exit code {got.returncode}, {got.stdout!r}, {got.stderr!r}; expected {text!r}, {said!r}")


def check_texts(e):
    whole = greedy(PROMPT, 24)
    stop = whole[30:36]
    e.expect("generate", [MODEL, PROMPT, "24"], whole, "+ 24 tokens, end 0")
    e.expect("generate", [MODEL, PROMPT, "24", "~", stop], whole[:whole.index(stop)], "end 2")
    e.expect("state", [MODEL, PROMPT, "12", str(e.folder / "saved")], whole)
    if not (e.folder / "saved").stat().st_size:
        fail("state: no file")
    small = str(e.folder / "small.gguf")
    gpurun("quantize", MODEL, small, "Q4_0")
    e.expect("draft", [MODEL, small, PROMPT, "40"], greedy(PROMPT, 40), "drafted tokens accepted")
    rest = [" there was a dog", " a cat"]
    e.expect("prefix", [MODEL, PROMPT, *rest], "".join(greedy(PROMPT + r, 16) + "\n" for r in rest))


def check_lengths(e):
    e.expect("shift", [MODEL, PROMPT, "400"], greedy(PROMPT, 400, "-c", "256", "--context-shift", "--ignore-eos"))
    prompt = "The cat named Max lived near the hill. " * 40
    e.expect("self_extend", [MODEL, prompt, "30"], greedy(prompt, 30, "-c", "1024", "-gan", "4", "-gaw", "32"))


def check_draws(e):
    tuned = add_metadata(e.folder / "tuned.gguf", {"general.sampling.temp": 0.5, "general.sampling.top_k": 3})
    words = ["-p", PROMPT, "-n", "30", "-s", "7", "--no-warmup"]
    text = gpurun("run", "-m", tuned, *words)
    e.expect("sampling", [tuned, PROMPT, "30", "7"], text, "2 from the file: temperature 0.5, top-k 3, top-p 0.95")
    if text == gpurun("run", "-m", MODEL, *words):
        fail("sampling: the file's parameters have no effect on the text")

    schema = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}, "old": {"type": "boolean"}},
              "required": ["name", "old"], "additionalProperties": False}
    got = e.run("json", MODEL, "A cat: ", json.dumps(schema))
    value = json.loads(got.stdout)
    if list(value) != ["name", "old"] or not isinstance(value["name"], str) or not isinstance(value["old"], bool):
        fail(f"json: {got.stdout!r}")


def check_chat(e):
    template = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}[bot]{% endif %}"
    model = add_metadata(e.folder / "chat.gguf", {"tokenizer.chat_template": template})
    messages = json.dumps([{"role": "user", "content": "Who is Max?"}])
    (e.folder / "messages.json").write_text(json.dumps({"messages": json.loads(messages), "add_generation_prompt": True}))
    prompt = gpurun("template", model, "--messages", str(e.folder / "messages.json"))
    if prompt != "[user] Who is Max?\n[bot]":
        fail(f"template: {prompt!r}")
    text = gpurun("run", "-m", model, "-p", prompt, "-n", "20", "-s", "0", "--no-warmup", "--no-escape")
    e.expect("chat", [model, messages, "20"], text)


def check_embeddings(e):
    texts = ["A dog ran to the hill.", "The queen has a red cup."]
    a, b = ([float(x) for x in line.split()] for line in
            gpurun("embed", "-m", MODEL, "--pooling", "mean", "-f", "-", text="\n".join(texts)).splitlines())
    cosine = sum(x * y for x, y in zip(a, b)) / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))
    got = e.run("embeddings", MODEL, *texts)
    if got.returncode or abs(float(got.stdout or "nan") - cosine) > 2e-5 or not 0 < cosine < 0.999:
        fail(f"embeddings: {got.stdout!r}, {got.stderr!r}, expected {cosine:.5f}")


def check_failures(e):
    """A file that is no model: its message and exit code, and nothing is lost (which the sanitizers see)."""
    for name in sorted(e.run_names):
        words = {"draft": 4, "state": 4, "sampling": 4}.get(name, 3)
        got = e.run(name, __file__, *["1"] * (words - 1))
        if got.returncode != 3 or "examples.py" not in got.stderr:
            fail(f"{name}: exit code {got.returncode}, {got.stderr!r}")


def main():
    folder = pathlib.Path(tempfile.mkdtemp())
    try:
        e = Examples(folder, install(folder))
        for check in (check_texts, check_lengths, check_draws, check_chat, check_embeddings, check_failures):
            check(e)
        names = {p.stem for p in pathlib.Path(SOURCE, "include/examples").glob("*.c")}
        listed = pathlib.Path(SOURCE, "include/README.md").read_text()
        for name in sorted(names):
            if name not in e.run_names:
                fail(f"{name}: not tried here")
            if f"examples/{name}.c" not in listed:
                fail(f"{name}: not in include/README.md")
        print(f"{len(names)} examples")
    finally:
        shutil.rmtree(folder)
    return bool(bad)


sys.exit(main())
