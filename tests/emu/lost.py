#!/usr/bin/env python3
"""A device that fails or is lost while gpurun writes: what was written stays, as a text and as JSON; a chat on a terminal ends, also
when it answers again.   lost.py PROGRAM"""
import json
import os
import pty
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


def chat(device, *lines):
    """The exit code and output of a chat on a pseudo terminal to which lines are typed, each at a prompt."""
    pid, fd = pty.fork()
    if pid == 0:
        os.environ.update({"TERM": "xterm", "XDG_STATE_HOME": "/proc/none", "GR_EMU_DEVICE": f"quiet,{device}" if device else "quiet"})
        os.execv(PROGRAM, ["gpurun", "chat", *RUN[2:], "--chat-template", "{{ messages[0].content }}"])
    data, said = b"", 0
    while True:
        try:
            data += os.read(fd, 65536)
        except OSError:  # the other end is closed
            break
        if data.count(b"] > ") > said and said < len(lines):
            os.write(fd, lines[said] + b"\r")
            said += 1
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), data


places = range(100, 500, 40)
code, data = chat("", b"Once", b"/regen", b"/exit")
assert code == 0 and b"chat: 2 turns" in data, (code, data)
ends = [chat(f"fail=kernel:{n}:719", b"Once", b"/regen", b"/timings", b"/exit") for n in places]
assert all(code == 4 if b"error: " in data else code == 0 for code, data in ends), ends
assert any(b"/regen" in data and b"/timings" not in data for _, data in ends), ends
print(f"{len(texts)} places to fail at:", *(t if t is None else len(t) for t in texts))
