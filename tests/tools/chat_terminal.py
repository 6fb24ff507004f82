#!/usr/bin/env python3
"""gpurun chat as it is used: chat_terminal.py GPURUN. The program runs on a pseudo terminal; what it understood is read from the files of
/save, and compared with the answers to the same messages in a pipe."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time

PROGRAM = sys.argv[1]
LIMIT = 20  # seconds without a byte
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
CHAT = ["chat", "-t", "1", "--cpu-level", "ref", "--no-warmup", "--no-progress", "--temp", "0", "--chat-template", TEMPLATE]
SHORT = [*CHAT, "-n", "8", "--ignore-eos"]
PROMPT = re.compile(rb"\[[\d.]+k?/[\d.]+k?\] > ")

folder = tempfile.TemporaryDirectory()
bad = []


def path(name):
    return os.path.join(folder.name, name)


def expect(what, ok, found):
    if not ok:
        bad.append(what)
        print(f"{what}: {found!r}"[:2000])


def shell(words):
    """Runs the program as a shell does with job control: says how it finds the terminal when the program stops, and a line lets it go on."""
    modes = termios.tcgetattr(0)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        os.tcsetpgrp(0, os.getpid())
        signal.signal(signal.SIGTTOU, signal.SIG_DFL)
        os.execv(PROGRAM, ["gpurun", *words])
    while True:
        status = os.waitpid(pid, os.WUNTRACED)[1]
        if not os.WIFSTOPPED(status):
            os._exit(os.waitstatus_to_exitcode(status) & 255)
        os.tcsetpgrp(0, os.getpgrp())
        found = termios.tcgetattr(0)
        termios.tcsetattr(0, termios.TCSADRAIN, modes)
        sane = all(found[i] == modes[i] for i in range(4))
        os.write(1, b"stopped, sane\r\n" if sane else b"stopped, changed\r\n")
        os.read(0, 100)
        os.tcsetpgrp(0, pid)
        os.kill(-pid, signal.SIGCONT)


class Terminal:
    """A chat on a pseudo terminal, beneath a shell or not."""

    def __init__(self, *words, env=None, columns=90, run=lambda words: os.execv(PROGRAM, ["gpurun", *words])):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update({"TERM": "xterm", "XDG_STATE_HOME": path("state"), **(env or {})})
            run(words)
        self.size(columns)
        self.data, self.seen = b"", 0
        self.wait()

    def size(self, columns):
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    def read(self):
        if not select.select([self.fd], [], [], LIMIT)[0]:
            raise RuntimeError(f"nothing comes: {self.data[-2000:]!r}")
        try:
            piece = os.read(self.fd, 65536)
        except OSError:  # the other end is closed
            piece = b""
        self.data += piece
        return piece

    def wait(self, mark=PROMPT):
        """Reads up to the mark; returns what stands before it."""
        mark = mark if isinstance(mark, re.Pattern) else re.compile(re.escape(mark))
        while not (found := mark.search(self.data, self.seen)):
            if not self.read():
                raise RuntimeError(f"ended before {mark.pattern!r}: {self.data!r}")
        text = self.data[self.seen:found.start()]
        self.seen = found.end()
        return text.decode(errors="replace")

    def type(self, text, mark=PROMPT):
        os.write(self.fd, text if isinstance(text, bytes) else text.encode())
        return self.wait(mark)

    def end(self, keys):
        """Presses keys that end the chat; its exit code."""
        os.write(self.fd, keys)
        while self.read():
            pass
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        os.close(self.fd)
        return code


def saved(name):
    with open(path(name)) as f:
        return [(m["role"], m["content"]) for m in json.load(f)["messages"]]


def in_pipe(*lines, words=SHORT):
    """The answers to lines, as objects."""
    done = subprocess.run([PROGRAM, *words, "--json"], input="\n".join(lines), capture_output=True, timeout=LIMIT, encoding="utf-8")
    return [json.loads(line) for line in done.stdout.splitlines()]


# Messages as they are typed: editing, several lines, characters, commands that are none.
t = Terminal(*SHORT, "-sys", "Tell.")
t.type("Onxe upon a tin\x7fme\x01\x1b[C\x1b[C\x1b[3~c\r")
t.type('"""first\r', b"... ")
t.type("\r", b"... ")
t.type('last"""\r')
t.type("one \\\r", b"... ")
t.type("two\r")
t.type("//path\r")
t.type('"""/usr/bin/x\r', b"... ")
t.type('//y"""\r')
t.type("Grüße, 世界\r")
expect("/undo without an answer is said", "there is no turn" not in t.type("/undo\r"), t.data)
t.type("dropped\x03")
t.type("/save " + path("a.json") + "\r")
users = [text for role, text in saved("a.json") if role == "user"]
expect("messages are those that were typed", users == ["Once upon a time", "first\n\nlast", "one \ntwo", "/path", "/usr/bin/x\n//y"], users)
expect("the system message", saved("a.json")[0] == ("system", "Tell."), saved("a.json"))
expect("Ctrl-D ends the chat", t.end(b"\x04") == 0, t.data)
expect("the summary", re.search(rb"chat: 6 turns \| prompt \d+ tok", t.data), t.data)

# Answers are those of a pipe; /regen, /undo, /system, /clear.
t = Terminal(*SHORT)
t.type("Once upon a time\r")
t.type("The cat\r")
t.type("/save " + path("b.json") + "\r")
answers = [turn["content"] for turn in in_pipe("Once upon a time", "The cat")]
expect("answers are those of a pipe", [text for role, text in saved("b.json") if role == "assistant"] == answers, (saved("b.json"), answers))
before = saved("b.json")
t.type("/regen\r")
t.type("/save\r")
expect("/regen gives the same answer at temperature 0", saved("b.json") == before, saved("b.json"))
t.type("/set temp 2\r")
t.type("/set seed 5\r")
t.type("/regen\r")
t.type("/save\r")
expect("/set and /regen give another one", saved("b.json")[:-1] == before[:-1] and saved("b.json") != before, saved("b.json"))
t.type("/set temp 0\r")
used = int(re.findall(rb"\[(\d+)/", t.data)[-1])
t.type("/undo\r")
expect("/undo empties the context by the turn", int(re.findall(rb"\[(\d+)/", t.data)[-1]) < used - 8, t.data)
t.type("The cat\r")
t.type("/save\r")
expect("/undo takes a turn back", saved("b.json") == before, saved("b.json"))
t.type("/clear\r")
t.type("/system Tell.\r")
t.type("Once upon a time\r")
t.type("/save\r")
expect("/clear and /system", [r for r, _ in saved("b.json")] == ["system", "user", "assistant"], saved("b.json"))
expect("/clear without a turn", "there is no message" in t.type("/clear\r") + t.type("/regen\r"), t.data)
expect("unknown commands", "did you mean /undo?" in t.type("/udno\r"), t.data)
expect("/help", "/timings" in t.type("/help\r"), t.data)
expect("/set of what there is not", "no flag of sampling" in t.type("/set ctx-size 5\r"), t.data)
expect("/set of a wrong value", "a number from" in t.type("/set temp = x\r"), t.data)
expect("/set of a wrong grammar", "leave one out" in t.type("/set grammar root\r"), t.data)
expect("/save of another file", "is there already" in t.type("/save " + path("a.json") + "\r"), t.data)
expect("/timings", " tok " in t.type("/timings\r"), t.data)
expect("Ctrl-C at the empty prompt leaves", t.end(b"\x03") == 130, t.data)

# /save and /load: the next answer is that of a chat that goes on, and the state is used; a damaged one is not.
whole = in_pipe("Once upon a time", "The cat", "More")
for damage in (False, True):
    t = Terminal(*SHORT)
    t.type("Once upon a time\r")
    t.type("The cat\r")
    name = f"c{damage}.json"
    t.type("/save " + path(name) + "\r")
    t.end(b"\x04")
    if damage:
        with open(path(name) + ".kv", "r+b") as f:
            f.seek(-100, 2)
            f.write(b"x" * 50)
    t = Terminal(*SHORT)
    said = t.type("/load " + path(name) + "\r")
    expect("/load says what it found", ("with their state" in said) != damage and ("computed again" in said) == damage, said)
    said = t.type("/tokens\r")
    expect("/load: the context", ("of which 0 are in use" in said) == damage, said)
    t.type("More\r")
    t.type("/save\r")
    expect("/load: the next answer", saved(name)[-1][1] == whole[2]["content"], (saved(name), whole))
    expect("/load without a name, of no file, of no messages",
           "needs the name" in t.type("/load\r") and "cannot read" in t.type("/load /no/such\r") and
           "is expected" in t.type("/load " + path("no.json") + "\r") if open(path("no.json"), "w").write('[{"role": 1}]') else False, t.data)
    t.type("/save\r")
    expect("/load: what failed changes nothing", len(saved(name)) == 6, saved(name))
    t.end(b"\x04")

# /read: a file begins the next message.
with open(path("text"), "w") as f:
    f.write("Once upon")
t = Terminal(*SHORT)
t.type("/read " + path("text") + "\r")
t.type("a time\r")
t.type("/save " + path("d.json") + "\r")
expect("/read", saved("d.json")[0][1] == "Once upon\na time", saved("d.json"))
t.end(b"\x04")

# -mli: a message ends with a backslash, or Ctrl-D.
t = Terminal(*SHORT, "-mli")
t.type("a\r", b"... ")
t.type("b\\\r")
t.type("c\r", b"... ")
t.type("\x04")
t.type("/save " + path("e.json") + "\r")
expect("-mli", [text for role, text in saved("e.json") if role == "user"] == ["a\nb", "c\n"], saved("e.json"))
t.end(b"\x04")

# Ctrl-C stops an answer, keeps what was written, and the chat goes on; resizing does not disturb a line.
t = Terminal(*CHAT, "--ignore-eos", "-c", "16384", columns=70)
os.write(t.fd, b"Once upon a time\r")
t.wait(re.compile(rb"time\r\n[^\[]{20}"))
t.type("\x03")
t.type("/set n 4\r")
os.write(t.fd, b"A" * 10)
t.wait(b"A" * 10)
t.size(30)
time.sleep(0.1)
t.type("B" * 100 + "\x01C\r", re.compile(rb"\r\n \S[^\[]*\r\n\[[\d.]+k?/16k\] > "))
t.type("/save " + path("f.json") + "\r")
messages = saved("f.json")
expect("Ctrl-C keeps what was written", messages[1][0] == "assistant" and 10 < len(messages[1][1]) < 60000, messages)
expect("a line that was resized", messages[2:3] == [("user", "C" + "A" * 10 + "B" * 100)], t.data)
expect("Ctrl-C: the chat goes on", t.end(b"\x04") == 0, t.data)

# Ctrl-C that is pressed twice stops an answer, in each answer anew; at the prompt it leaves when nothing was stopped just now.
t = Terminal(*CHAT, "--ignore-eos", "-c", "16384")
for turn in ("one", "two"):
    os.write(t.fd, turn.encode() + b"\r")
    t.wait(re.compile(turn.encode() + rb"\r\n[^\[]{20}"))
    t.type("\x03\x03")
t.type("\x03")
t.type("/save " + path("i.json") + "\r")
expect("two answers are stopped", [r for r, _ in saved("i.json")] == ["user", "assistant"] * 2 and
       all(len(text) < 60000 for _, text in saved("i.json")), saved("i.json"))
time.sleep(1.1)
expect("Ctrl-C at the empty prompt leaves after a while", t.end(b"\x03") == 130, t.data)

# Ctrl-Z stops the program at the prompt, twice in a line, and within an answer; each goes on where it was.
t = Terminal(*CHAT, "--ignore-eos", "-c", "16384", run=shell)
os.write(t.fd, b"abc")
t.wait(b"abc")
for again in range(2):
    t.type("\x1a", b"stopped, sane")
    t.type("\r", b"> abc")
os.write(t.fd, b"\x01X\r")
t.wait(re.compile(rb"\r\n[^\[\r]{20}"))
t.type("\x1a", b"stopped, sane")
t.type("\r", re.compile(rb"\r\n[^\[\r]{20}"))
t.type("\x03")
t.type("/set n 4\r")
t.type("ab\x7f\x01Y\r")
t.type("/save " + path("z.json") + "\r")
expect("Ctrl-Z", [text for role, text in saved("z.json") if role == "user"] == ["Xabc", "Ya"], saved("z.json"))
expect("Ctrl-Z: the end", t.end(b"\x04") == 0, t.data)

# A second Ctrl-C that comes later ends a chat that hangs.
os.mkfifo(path("fifo"))
t = Terminal(*SHORT)
os.write(t.fd, b"/read " + path("fifo").encode() + b"\r")
t.wait(b"fifo\r\n")
time.sleep(0.3)
os.write(t.fd, b"\x03")
t.wait(b"^C")
time.sleep(1.1)
expect("a second Ctrl-C ends what hangs", t.end(b"\x03") == 130, t.data)

# The history is that of earlier chats, for its owner only.
t = Terminal(*SHORT, env={"XDG_STATE_HOME": path("other")})
t.type("Hello there\r")
t.end(b"\x04")
t = Terminal(*SHORT, env={"XDG_STATE_HOME": path("other")})
t.type("\x1b[A\r")
t.type("/save " + path("g.json") + "\r")
expect("the history", saved("g.json")[0][1] == "Hello there", saved("g.json"))
t.end(b"\x04")
expect("the history's mode", os.stat(path("other/gpurun/history")).st_mode & 0o777 == 0o600, "mode")
t = Terminal(*SHORT, env={"XDG_STATE_HOME": "/proc/none"})
expect("a history that cannot be kept", "history is not kept" in t.type("a\r"), t.data)
expect("a history that cannot be kept is told about once", "history is not kept" not in t.type("b\r"), t.data)
t.end(b"\x04")

# A long history is replaced, and not written over; a link to it stays one.
os.makedirs(path("long/gpurun"))
with open(path("target"), "w") as f:
    f.write("_HiStOrY_V2_\n" + "".join(f"line{i}\n" for i in range(2100)))
os.chmod(path("target"), 0o644)
os.symlink(path("target"), path("long/gpurun/history"))
with open(path("target")) as before:
    t = Terminal(*SHORT, env={"XDG_STATE_HOME": path("long")})
    t.type("last\r")
    t.end(b"\x04")
    expect("the earlier history is whole", len(before.readlines()) == 2101, "lines")
with open(path("target")) as f:
    lines = f.read().splitlines()
expect("the history is shortened", len(lines) == 1002 and lines[0] == "_HiStOrY_V2_" and lines[-2:] == ["line2099", "last"], lines[-3:])
expect("the history's link", os.path.islink(path("long/gpurun/history")), "no link")
expect("the replaced history's mode", os.stat(path("target")).st_mode & 0o777 == 0o600, "mode")
expect("no other file is left", os.listdir(path("long/gpurun")) == ["history"], os.listdir(path("long/gpurun")))

# Reasoning is dimmed, or hidden.
THOUGHT = [*CHAT, "--grammar", 'root ::= "<think>hm</think>\\n\\nok"']
for words, env, mark in (([], {}, b"\x1b[2mhm\x1b[0m\r\nok\r\n"), ([], {"NO_COLOR": "1"}, b"<think>\r\nhm\r\n</think>\r\nok\r\n"),
                         (["--reasoning-format", "hidden"], {}, b"a\r\nok\r\n"),
                         (["--reasoning-format", "deepseek-legacy"], {}, b"a\r\n<think>hm</think>\r\n\r\nok\r\n"),
                         (["--reasoning-format", "none"], {}, b"<think>hm</think>\r\n\r\nok\r\n")):
    t = Terminal(*THOUGHT, *words, env=env)
    t.type("a\r")
    expect(f"reasoning {words} {env}", mark in t.data, t.data)
    t.end(b"\x04")

t = Terminal(*THOUGHT, "--reasoning-format", "deepseek-legacy")
t.type("a\r")
t.type("/save " + path("r.json") + "\r")
with open(path("r.json")) as f:
    message = json.load(f)["messages"][1]
expect("deepseek-legacy: the message", (message["content"], message["reasoning_content"]) == ("ok", "hm"), message)
t.end(b"\x04")

# A terminal shows what it would obey; in a pipe the bytes are exact.
WILD = 'root ::= "a\\x1b[31mb\\x07\\rc\\u009bd\\u202ee\\u2066f\\x7f\\tg\\nö"'
EXACT = "a\x1b[31mb\x07\rc\u009bd\u202ee\u2066f\x7f\tg\nö"
SHOWN = "a^[[31mb^G^Mc\ufffdd\ufffde\ufffdf^?\tg\r\nö".encode()
t = Terminal(*CHAT, "--grammar", WILD)
t.type("x\r")
expect("control characters are shown", SHOWN + b"\r\n" in t.data, t.data)
t.type("/save " + path("w.json") + "\r")
expect("control characters are in the message", saved("w.json")[1][1] == EXACT, saved("w.json"))
t.end(b"\x04")
out = subprocess.run([PROGRAM, *CHAT, "--grammar", WILD, "-q"], input=b"x\n", capture_output=True, timeout=LIMIT).stdout
expect("control characters in a pipe", out == EXACT.encode() + b"\n", out)

# A full context ends an answer, then a turn, and not the chat.
t = Terminal(*CHAT, "--ignore-eos", "-c", "256")
said = t.type("Once upon a time\r")
expect("full: the answer ends", "the context of 256 tokens is full" in said and "/clear" in said, said)
said = t.type("The cat\r")
expect("full: the turn fails", "prompt is too long" in said and "/undo" in said, said)
t.type("/save " + path("h.json") + "\r")
expect("full: the message is taken back", len(saved("h.json")) == 2, saved("h.json"))
t.type("/clear\r")
t.type("/set n 4\r")
t.type("The cat\r")
t.type("/save\r")
expect("full: /clear begins anew", [r for r, _ in saved("h.json")] == ["user", "assistant"], saved("h.json"))
expect("full: the end", t.end(b"\x04") == 0, t.data)

# A shifted context whose system message is another one begins anew, and keeps that one: as a chat that has these messages from a file.
SHIFT = [*CHAT, "--ignore-eos", "-c", "256", "-n", "200", "--context-shift"]
LONG = "Tell a story about a cat, a dog and a bird who live in a small house beside the river. " * 2
t = Terminal(*SHIFT, "-sys", "Tell.")
for text in ("Once upon a time", "The cat"):
    t.type(text + "\r")
t.type("/system " + LONG + "\r")
t.type("/set n 40\r")
t.type("/save " + path("j.json") + "\r")
t.type("More\r")
used = re.findall(rb"\[\d+/256\]", t.data)[-1]
t.type("/save " + path("k.json") + "\r")
t.end(b"\x04")
t = Terminal(*SHIFT)
t.type("/load " + path("j.json") + "\r")
t.type("/set n 40\r")
t.type("More\r")
loaded = re.findall(rb"\[\d+/256\]", t.data)[-1]
t.type("/save " + path("l.json") + "\r")
t.end(b"\x04")
expect("a shifted context begins anew", saved("k.json") == saved("l.json") and len(saved("k.json")) == 7, (saved("k.json")[-1], saved("l.json")[-1]))
expect("a shifted context keeps its new system message", loaded == used, (loaded, used))

# In a pipe Ctrl-C ends the answer and the chat, and what was written is there.
piped = subprocess.Popen([PROGRAM, *CHAT, "--ignore-eos", "-c", "16384"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE)
piped.stdin.write(b"Once upon a time\nThe cat\n")
piped.stdin.flush()
begun = piped.stdout.read(20)
piped.send_signal(signal.SIGINT)
out, err = piped.communicate(timeout=LIMIT)
expect("a pipe: Ctrl-C", piped.returncode == 130 and (begun + out).count(b"\n") >= 1 and out.endswith(b"\n") and b"chat: 1 turn" in err,
       (piped.returncode, begun, out[-200:], err))

# -p and -st: one answer on a terminal.
pid, fd = pty.fork()
if pid == 0:
    os.environ["XDG_STATE_HOME"] = path("state")
    os.execv(PROGRAM, ["gpurun", *SHORT, "-st", "-p", "Once"])
data = b""
try:
    while piece := os.read(fd, 65536):
        data += piece
except OSError:
    pass
expect("-st", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0 and b"> Once\r\n" in data, data)

if bad:
    sys.exit(f"{len(bad)} failed: {'; '.join(bad)}")
print("the chat is right")
