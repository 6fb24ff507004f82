#!/usr/bin/env python3
"""Progress as it is seen: terminal.py GPURUN_CLOCK. The program runs on a pseudo terminal whose screen is followed, with a clock
that runs GR_TEST_CLOCK times as fast, so that what takes a moment is shown as what takes minutes."""

import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import tempfile
import termios

PROGRAM = sys.argv[1]
LIMIT = 120  # seconds without a byte
FAST = {"GR_TEST_CLOCK": "1000"}
BAR = re.compile(rb"\r\w[^\r\n]* \[[#-]+\] +\d+ %[^\r\n]*\x1b\[K")


def screen(data, columns):
    """The lines that are left when a terminal has shown the bytes."""
    lines, column = [""], 0
    for token in re.findall(rb"\x1b\[K|\x1b\[[\d;]*m|\r|\n|[^\x1b\r\n]+", data):
        if token == b"\r":
            column = 0
        elif token == b"\n":
            lines.append("")
        elif token == b"\x1b[K":
            lines[-1] = lines[-1][:column]
        elif not token.startswith(b"\x1b"):
            text = token.decode(errors="replace")
            lines[-1] = lines[-1][:column] + text + lines[-1][column + len(text):]
            column += len(text)
            assert "\x1b" not in text
    return lines


def on_terminal(*words, columns=90, interrupt=None, env=None, stdout=None):
    """(exit code, bytes, lines of the screen). Ctrl-C is pressed when the bytes `interrupt` have come."""
    pid, fd = pty.fork()
    if pid == 0:
        os.environ.update({"TERM": "xterm", **(FAST if env is None else env)})
        if stdout:
            os.dup2(os.open(stdout, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 1)
        os.execv(PROGRAM, ["gpurun", *map(str, words)])
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    data = b""
    while select.select([fd], [], [], LIMIT)[0]:
        try:
            piece = os.read(fd, 65536)
        except OSError:  # the other end is closed
            break
        data += piece
        if interrupt and interrupt in data:
            os.write(fd, b"\x03")
            interrupt = None
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.close(fd)
    return code, data, screen(data, columns)


def in_pipe(*words, env=None):
    done = subprocess.run([PROGRAM, *map(str, words)], stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT,
                          env={**os.environ, **(FAST if env is None else env)})
    return done.returncode, done.stdout, done.stderr.decode()


def expect(what, ok, found):
    if not ok:
        bad.append(what)
        print(f"{what}: {found!r}"[:2000])


def clean(what, lines):
    expect(f"{what}: no bar is left", not any("[#" in l or "-]" in l or "%" in l for l in lines), lines)


bad = []
folder = tempfile.TemporaryDirectory()
text = os.path.join(folder.name, "text")
with open(text, "w") as f:
    f.write("Once upon a time there was a cat who sat on a mat. " * 60)
RUN = ["-f", text, "-c", 2048, "-n", 8, "--temp", 0, "-t", 1, "--ignore-eos"]

# A prompt: the bar goes before the text comes, which is what a pipe gets.
_, plain, _ = in_pipe(*RUN, env={})
code, data, lines = on_terminal(*RUN, "--no-display-prompt")
expect("run: exit code", code == 0, data)
expect("run: a bar of the prompt", b"prompt [" in data and BAR.search(data), data)
expect("run: the text", any(plain.decode().strip() in l for l in lines), lines)
expect("run: the summary", any(l.startswith("prompt ") and " tok " in l for l in lines), lines)
clean("run", lines)
code, data, lines = on_terminal(*RUN, "-q", "--no-display-prompt")
expect("-q: the text alone", [l for l in lines if l] == [plain.decode().rstrip("\n")], lines)
code, data, lines = on_terminal(*RUN, "--no-display-prompt", "--no-progress")
expect("--no-progress: no bar", code == 0 and b"\x1b[K" not in data, data)
code, data, lines = on_terminal(*RUN, "--no-display-prompt", env={})
expect("short work shows nothing", code == 0 and (b"\x1b[K" not in data or os.getloadavg()[0] > 2), data)

# Control characters are shown on a terminal, in a prompt, a text, a list of tokens and a message; in a pipe the bytes are exact.
WILD = ["-p", "x\x1b]0;y\x07", "--no-escape", "--grammar", 'root ::= "a\\x1b[31mb\\u009b"', "--temp", 0, "-t", 1, "-q"]
code, data, lines = on_terminal(*WILD, env={"NO_COLOR": "1"})
expect("run: control characters are shown", b"x^[]0;y^Ga^[[31mb\xef\xbf\xbd\r\n" in data and b"\x1b" not in data, data)
expect("run: control characters in a pipe", in_pipe(*WILD, env={})[1] == "a\x1b[31mb\u009b".encode(), in_pipe(*WILD, env={}))
code, data, lines = on_terminal("tokenize", "-p", "\x1b[31m", "--no-escape", env={})
expect("tokenize: control characters are shown", code == 0 and b"'^[" in data and b"\x1b" not in data, data)
code, data, lines = on_terminal("run", "-m", "/no/\x1b[31m", env={})
expect("messages: control characters are shown", code != 0 and b"\x1b" not in data, data)

# Weights that are read, and the first use of them.
code, data, lines = on_terminal(*RUN, "--check-tensors", env={"GR_TEST_CLOCK": "100000"})
expect("warm-up: a bar", re.search(rb"warm-up \[[#-]+\] \d+ %, about", data), data)
expect("load: a bar", b"load [" in data and re.search(rb"load .* of [\d.]+ MiB", data), data)
clean("load", lines)

# Lines elsewhere.
code, out, err = in_pipe(*RUN)
expect("pipe: the same text", out == plain, out)
said = re.findall(r"^prompt: \d+ %, \d+ of \d+ tokens, [\d.]+ t/s, about .* left$", err, re.M)
expect("pipe: lines", code == 0 and len(said) > 1 and "\x1b" not in err and "\r" not in err, err)
code, out, err = in_pipe(*RUN, "-q")
expect("pipe: -q", err == "", err)

# Tables and lists on the same terminal.
code, data, lines = on_terminal("bench", "-p", 256, "-n", 64, "-d", "0,64", "-r", 2, "-t", 1, columns=200)
rows = [l for l in lines if l.startswith("|")]
expect("bench: a bar of each kind", b"bench pp256 [" in data and b"bench tg64 @ d64 [" in data, data)
expect("bench: its table", code == 0 and len(rows) == 6 and len({l.count("|") for l in rows}) == 1, lines)
clean("bench", [l for l in lines if not l.startswith("|")])
code, data, lines = on_terminal("perplexity", "-f", text, "-c", 128, "-b", 128, "-t", 1)
expect("perplexity: a bar with what it is so far", re.search(rb"\] \d+ %, chunk \d+ of \d+, perplexity so far", data), data)
expect("perplexity: its end", code == 0 and any(l.startswith("Final estimate") for l in lines), lines)
clean("perplexity", lines)
code, data, lines = on_terminal("perplexity", "-f", text, "-c", 128, "-b", 128, "-t", 1, stdout=text + ".out")
expect("perplexity: stdout elsewhere", b"perplexity [" in data and open(text + ".out").read().startswith("[1]"), data)
code, data, lines = on_terminal("perplexity", "-f", text, "-c", 128, "-b", 128, "-t", 1, "--json", columns=400)
found = [l for l in lines if l.startswith("{")]
expect("perplexity --json: one object", len(found) == 1 and len(json.loads(found[0])["chunks"]) > 3, lines)
code, data, lines = on_terminal("imatrix", "-f", text, "-c", 128, "-b", 128, "-t", 1, "-o", text + ".gguf", "--overwrite")
expect("imatrix: a bar with what it is so far", code == 0 and re.search(rb"\rimatrix .*\d+ %, chunk \d+ of", data), data)
expect("imatrix: its end", sum("chunks of 128 tokens" in l for l in lines) == 1, lines)
clean("imatrix", lines)
code, out, err = in_pipe("imatrix", "-f", text, "-c", 128, "-b", 128, "-t", 1, "-o", text + ".gguf", "--overwrite")
expect("imatrix in a pipe: a line of each chunk", len(re.findall(r"^chunk \d+ of \d+, perplexity so far", err, re.M)) > 3, err)
with open(text + ".lines", "w") as f:
    f.write("a cat\n" * 400)
EMBED = ["embed", "-f", text + ".lines", "-b", 64, "--pooling", "mean", "-t", 1]
_, plain, _ = in_pipe(*EMBED)
code, data, lines = on_terminal(*EMBED, columns=60000)
expect("embed: a bar", code == 0 and b"embed [" in data, data[-400:])
vectors = [l for l in lines if re.fullmatch(r"-?\d[-\d.e ]+", l)]
expect("embed: its rows", len(vectors) == 400 and vectors == plain.decode().splitlines(), [l[:90] for l in lines])

# Ctrl-C: a command that catches it, one that does not.
with open(text + ".long", "w") as f:
    f.write("Once upon a time there was a cat who sat on a mat. " * 2000)
code, data, lines = on_terminal("-f", text + ".long", "-c", 40000, "-t", 1, "--temp", 0, interrupt=b"prompt [")
expect("Ctrl-C: run ends in good order", code == 130 and any(" tok " in l for l in lines), (code, lines))
clean("Ctrl-C: run", lines)
code, data, lines = on_terminal("perplexity", "-f", text + ".long", "-c", 2048, "-t", 1, interrupt=b"perplexity [")
expect("Ctrl-C: perplexity ends in good order", code == 130, code)
clean("Ctrl-C: perplexity", lines)
code, data, lines = on_terminal("embed", "-f", text + ".long", "--embd-separator", "", "-t", 1, interrupt=b"embed [")
expect("Ctrl-C: embed is ended", code == -2, code)
clean("Ctrl-C: embed", lines)

if bad:
    sys.exit(f"{len(bad)} failed: {'; '.join(bad)}")
print("what is shown is right")
