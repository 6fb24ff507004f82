#!/usr/bin/env python3
"""A device that fails or is lost while gpurun writes: what was written stays, as a text and as JSON.   lost.py PROGRAM"""
import json
import os
import subprocess
import sys
import tempfile

PROGRAM = sys.argv[1]
RUN = ["-p", "Once upon a time", "-n", "8", "--temp", "0", "--ignore-eos", "-s", "1", "-ngl", "99", "--no-warmup"]


def run(device, *words):
    env = dict(os.environ, GR_EMU_DEVICE=f"quiet,{device}" if device else "quiet")
    done = subprocess.run([PROGRAM, *RUN, *words], env=env, capture_output=True)
    return done.returncode, done.stdout, done.stderr.decode(errors="replace")


def failed(device, whole):
    """The text of a run on a device that fails, after everything was checked: "" when that was in the prompt, the whole one
    when it did not fail, None when nothing was begun."""
    code, out, said = run(device, "--json", "-q")
    if not out:
        assert code == 4 and "error: " in said, (code, said)
        return None
    found = json.loads(out)
    if code == 0:
        assert found["stop"] == "length" and "error" not in found and found["text"] == whole, found
        return whole
    assert (code, found["stop"]) == (4, "error"), (code, found, said)
    assert found["error"] and found["error"] in said, (found, said)
    assert whole.startswith(found["text"]) and found["generated_tokens"] <= 8, found
    if "lost=" in device:
        os.remove(device.split("lost=")[1])
    code, out, said = run(device)
    assert code == 4 and out.decode() == found["text"], (code, out, found)
    assert "error: " in said and " gen " not in said, said
    return found["text"]


code, out, said = run("", "--json")
assert code == 0, said
whole = json.loads(out)["text"]
texts = []
while whole not in texts:
    texts.append(failed(f"fail=kernel:{10 + 13 * len(texts)}:719", whole))
assert "" in texts, texts
assert len({t for t in texts if t}) > 3, f"texts that were begun: {texts}"
with tempfile.TemporaryDirectory() as folder:
    assert failed(f"plant=lose:gr_attn,lost={folder}/lost", whole) == ""
print(f"{len(texts)} places to fail at:", *(t if t is None else len(t) for t in texts))
