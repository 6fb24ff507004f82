#!/usr/bin/env python3
"""Every file that the program writes, under every kind of name: outputs.py GPURUN SOURCE_DIR [WRITER ..].

Exit code, message and what is there afterwards. Rows that need root (devices, full and read-only disks) are left out without
it, and it is said how many."""

import os
import pathlib
import shutil
import stat
import subprocess
import sys
import tempfile
import threading

PROGRAM, SOURCE = sys.argv[1:3]
ROOT = os.geteuid() == 0
if ROOT and "GR_OUTPUTS_MOUNTS" not in os.environ:  # mounts of its own, gone with it
    os.environ["GR_OUTPUTS_MOUNTS"] = "1"
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode == 0:
        os.execvp("unshare", ["unshare", "-m", sys.executable] + sys.argv)
    os.environ["GR_OUTPUTS_MOUNTS"] = ""
MOUNTS = ROOT and bool(os.environ["GR_OUTPUTS_MOUNTS"])
LIMIT = 120  # seconds of a run
REMEDY = ("choose another", "another file name", "choose the name", "give a path", "make it")
OLD = b"what was there before\n"
bad, left_out = [], 0


class Writer:
    """words(out, inputs): the command line; keeps: a file that exists stays without --overwrite; start: how a good file begins."""

    def __init__(self, name, words, start, keeps=False, seeks=False, live=False, target=lambda out: out, reads="model.gguf"):
        self.name, self.words, self.start, self.keeps, self.seeks, self.live = name, words, start, keeps, seeks, live
        self.target, self.reads = target, reads


RUN = ["run", "-p", "Once", "-n", "1", "--temp", "0", "--no-warmup", "-t", "1"]
PARTS = "{0}-00001-of-00002.gguf"
WRITERS = [
    Writer("quantize", lambda out, d: ["quantize", d / "tiny.gguf", out, "COPY"], b"GGUF", keeps=True, reads="tiny.gguf"),
    Writer("merge", lambda out, d: ["merge", d / "part-00001-of-00002.gguf", out], b"GGUF", keeps=True,
           reads="part-00002-of-00002.gguf"),
    Writer("split", lambda out, d: ["split", d / "tiny.gguf", out, "--split-max-tensors", d.n_first], b"GGUF", keeps=True,
           target=lambda out: pathlib.Path(PARTS.format(out)), reads=None),
    Writer("imatrix", lambda out, d: ["imatrix", d / "model.gguf", "-f", d / "text", "-c", "16", "--chunks", "1", "-t", "1", "-o", out],
           b"GGUF", keeps=True),
    Writer("perplexity", lambda out, d: ["perplexity", d / "model.gguf", "-f", d / "text", "-c", "16", "--chunks", "1", "-t", "1",
                                         "--kl-divergence-base", out], b"_logits_", keeps=True),
    Writer("prompt-cache", lambda out, d: RUN + ["-m", d / "model.gguf", "--prompt-cache", out], b"gpurunKV", seeks=True),
    Writer("trace", lambda out, d: RUN + ["-m", d / "model.gguf", "--trace", out], b'{"displayTimeUnit"'),
    Writer("bench trace", lambda out, d: ["bench", "-m", d / "model.gguf", "-p", "4", "-n", "0", "-r", "1", "-t", "1", "--trace", out],
           b'{"displayTimeUnit"'),
    Writer("log-file", lambda out, d: RUN + ["-m", d / "model.gguf", "--log-file", out], b"model: ", live=True),
    Writer("replay", lambda out, d: ["replay", d / "session.json", "-m", d / "tiny.gguf", "-o", out.parent], b"\x93NUMPY",
           target=lambda out: out.parent / "rc_0.npy", reads=None),
]


class Folder(type(pathlib.Path())):
    """The inputs."""

    n_first = "10"

    def fill(self):
        golden = pathlib.Path(SOURCE, "tests/golden")
        shutil.copy(golden / "replay/tiny.gguf", self / "tiny.gguf")
        shutil.copy(golden / "replay/session.json", self / "session.json")
        shutil.copy(pathlib.Path(SOURCE, "tools/default-model.gguf"), self / "model.gguf")
        (self / "text").write_text("Once upon a time there was a little girl who had a red ball. " * 3)
        subprocess.run([PROGRAM, "split", self / "tiny.gguf", self / "part", "--split-max-tensors", self.n_first, "-q"], check=True)


def gpurun(words, fifo=None, weak=False):
    """Runs the program; with fifo reads it meanwhile. -> exit code, stderr, stdout or what came through the FIFO."""
    got = []
    command = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"] * (weak and ROOT) + [PROGRAM] + [str(w) for w in words]
    reader = threading.Thread(target=lambda: got.append(fifo.read_bytes()), daemon=True)
    if fifo:
        reader.start()
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT)
    if fifo and not got and stat.S_ISFIFO(fifo.lstat().st_mode):  # refused, perhaps: then nobody opened it
        os.close(os.open(fifo, os.O_RDWR | os.O_NONBLOCK))
    if fifo:
        reader.join(10)
    return done.returncode, done.stderr.decode(), (got[0] if got else None) if fifo else done.stdout


def bytes_of(path):
    return path.read_bytes() if path.is_file() else None


class Row:
    """A writer and a kind of name: a folder of its own, where `out` is what the flag gets and `at` is the file."""

    def __init__(self, writer, kind, where):
        self.writer, self.kind = writer, kind
        self.dir = pathlib.Path(tempfile.mkdtemp(dir=where))
        self.out = self.dir / "out"
        self.at = writer.target(self.out)

    def expect(self, holds, what):
        if not holds:
            bad.append(f"{self.writer.name}, {self.kind}: {what}")

    def run(self, inputs, code, words="", extra=(), **how):
        got, err, through = gpurun(self.writer.words(self.out, inputs) + list(extra), **how)
        self.expect(got == code, f"exit code {code} expected, found {got}: {err}")
        lines = [line for line in err.splitlines() if "error:" in line]
        if code:
            self.expect(len(lines) == 1 and words in lines[0], f"one error with '{words}' expected, found: {err}")
            self.expect(any(r in err for r in REMEDY), f"no remedy: {err}")
        else:
            self.expect(not lines, err)
        return err, through

    def refused(self, inputs, code, words, **how):
        """Before any work: nothing else is said but what split is going to do."""
        err, _ = self.run(inputs, code, words, **how)
        before = [line for line in err.splitlines() if "error:" not in line and not line.startswith("part ")]
        self.expect(self.writer.name == "replay" or not before, f"refused late: {err}")

    def good(self, data):
        self.expect(data and (self.writer.start in data if self.writer.live else data.startswith(self.writer.start)), f"no good file: {data and data[:40]}")

    def holds(self, path, data):
        self.expect(bytes_of(path) == data, f"{path.name} is changed")

    def only(self, *names):
        """Nothing else was left in the folder; replay and split have more files there."""
        found = sorted(p.name for p in self.dir.iterdir())
        if self.writer.name not in ("replay", "split"):
            self.expect(found == sorted(names), f"{sorted(names)} expected in the folder, found {found}")
        self.expect(not [n for n in found if ".tmp-" in n], f"left behind: {found}")


def kind_absent(r, d):
    r.run(d, 0)
    r.good(bytes_of(r.at))
    r.only("out")


def kind_file(r, d, extra=()):
    r.at.write_bytes(OLD)
    if r.writer.seeks:  # no state: not written over
        r.run(d, STATE_REFUSED, "--prompt-cache")
        r.holds(r.at, OLD)
    elif r.writer.keeps and not extra:
        r.refused(d, 2, "exists")
        r.holds(r.at, OLD)
    else:
        r.run(d, 0, extra=extra)
        r.good(bytes_of(r.at))
    r.only("out")


def kind_overwrite(r, d):
    if r.writer.keeps:
        kind_file(r, d, ["--overwrite"])


def kind_folder(r, d):
    r.at.mkdir()
    r.refused(d, 2, "is a folder")
    r.expect(not list(r.at.iterdir()), "something is in the folder")


def kind_missing(r, d):
    r.out = r.dir / "none" / "deep" / "out"
    r.refused(d, 6, "none")
    r.only()


def kind_no_permission(r, d):
    r.dir.chmod(0o555)
    r.refused(d, 6, "Permission denied", weak=True)
    r.dir.chmod(0o755)
    r.only()


def device(r, d, path):
    if r.writer.seeks:
        r.refused(d, 2, "is a device")
    else:
        r.run(d, 0)
    r.expect(stat.S_ISCHR(path.lstat().st_mode), "the device is gone")


def kind_device(r, d):
    os.mknod(r.at, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    device(r, d, r.at)


def kind_device_without_room(r, d):
    os.mknod(r.at, stat.S_IFCHR | 0o666, os.makedev(1, 7))
    if not r.writer.seeks:
        r.run(d, 6, "No space left")
    r.expect(stat.S_ISCHR(r.at.lstat().st_mode), "the device is gone")


def kind_fifo(r, d):
    os.mkfifo(r.at)
    if r.writer.seeks:
        r.refused(d, 2, "is a FIFO")
    else:
        r.good(r.run(d, 0, fifo=r.at)[1])
    r.expect(stat.S_ISFIFO(r.at.lstat().st_mode), "the FIFO is gone")


def kind_link_to_file(r, d, extra=()):
    there = r.dir / "there"
    there.write_bytes(OLD)
    r.at.symlink_to("there")
    if r.writer.keeps and not extra:
        r.refused(d, 2, "exists")
        r.holds(there, OLD)
    elif not r.writer.seeks:
        r.run(d, 0, extra=extra)
        r.good(bytes_of(there))
    r.expect(r.at.is_symlink(), "the link is gone")
    r.only("out", "there")


def kind_link_overwrite(r, d):
    if r.writer.keeps:
        kind_link_to_file(r, d, ["--overwrite"])


def kind_link_to_absent(r, d):
    (r.dir / "deep").mkdir()
    r.at.symlink_to("deep/next")
    (r.dir / "deep" / "next").symlink_to("../there")
    r.run(d, 0)
    r.good(bytes_of(r.dir / "there"))
    r.expect(r.at.is_symlink(), "the link is gone")
    r.only("out", "there", "deep")


def kind_link_to_device(r, d):
    null = r.dir / "null"
    os.mknod(null, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    r.at.symlink_to("null")
    device(r, d, null)
    r.expect(r.at.is_symlink(), "the link is gone")


def kind_circle(r, d):
    r.at.symlink_to(r.at.name)
    r.refused(d, 6, "symbolic links")


def mount(r, options):
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", r.dir], check=True)


def fill_up(path):
    with open(path, "wb", buffering=0) as f:
        try:
            while f.write(bytes(4096)):
                pass
        except OSError:
            pass


def kind_full(r, d):
    mount(r, "size=64k")
    fill_up(r.dir / "full")
    _, text = r.run(d, 6, "No space left on device")
    r.expect(r.writer.words(r.out, d)[0] != "run" or text, "a text is worth more than a file beside it")
    r.only("full", *["out"] * r.writer.live)
    r.expect(r.writer.live or not r.at.exists(), "a part of a file is there")
    subprocess.run(["umount", r.dir], check=True)


def kind_read_only(r, d):
    mount(r, "ro,size=64k")
    r.refused(d, 6, "Read-only file system")
    subprocess.run(["umount", r.dir], check=True)


def kind_input(r, d):
    if r.writer.reads is None:
        return
    r.out = r.at = d / r.writer.reads
    before = r.at.read_bytes()
    r.refused(d, 2, "exists" if r.writer.keeps else "a file of this command")
    r.holds(r.at, before)
    if r.writer.name in ("imatrix", "perplexity"):
        r.run(d, 2, "a file of this command", extra=["--overwrite"])
        r.holds(r.at, before)


STATE_REFUSED = 3
NEEDS_ROOT = ("device", "device_without_room", "link_to_device")
NEEDS_MOUNTS = ("full", "read_only")
KINDS = {name[5:]: fn for name, fn in list(globals().items()) if name.startswith("kind_")}


def folders(d, where):
    """The folder of replay -o."""
    words = ["replay", d / "session.json", "-m", d / "tiny.gguf", "-o"]
    (where / "file").write_bytes(OLD)
    (where / "link").symlink_to("made")
    for name, code, text in [("file", 6, "is no folder"), ("none/deep", 6, "cannot make the folder"), ("link", 0, "")]:
        got, err, _ = gpurun(words + [where / name])
        if got != code or text not in err:
            bad.append(f"replay -o {name}: exit code {code} and '{text}' expected, found {got}: {err}")
    if not (where / "link").is_symlink() or not (where / "made/rc_0.npy").exists():
        bad.append("replay -o: the folder at the end of a link was not made")


def standard(d, where):
    """The file that stdout goes to is not replaced: the text comes behind the trace in it."""
    with open(where / "stdout", "wb") as f:
        rc = subprocess.run([PROGRAM] + [str(w) for w in RUN + ["-m", d / "model.gguf", "--trace", "/dev/stdout"]], stdout=f,
                            stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, timeout=LIMIT).returncode
        same = os.fstat(f.fileno()).st_ino == (where / "stdout").stat().st_ino
    text = (where / "stdout").read_text()
    if rc or not same or '{"displayTimeUnit"' not in text:
        bad.append(f"--trace /dev/stdout: exit code {rc}, found {text[:60]!r}")


def twice(d, where):
    """Two outputs of a command under one name, which a device can be."""
    words = RUN + ["-m", d / "model.gguf"]
    for first, second in [("--log-file", "--trace"), ("--prompt-cache", "--log-file"), ("--trace", "--prompt-cache")]:
        got, err, _ = gpurun(words + [first, where / "one", second, where / "one"])
        if got != 2 or "a file of this command" not in err or (where / "one").exists():
            bad.append(f"{first} and {second} under one name: exit code 2 expected, found {got}: {err}")
    got, err, _ = gpurun(words + ["--log-file", "/dev/null", "--trace", "/dev/null"])
    if got:
        bad.append(f"two outputs to a device: exit code 0 expected, found {got}: {err}")


def main():
    global left_out
    with tempfile.TemporaryDirectory() as top:
        inputs = Folder(top, "inputs")
        inputs.mkdir()
        inputs.fill()
        only = sys.argv[3:]
        for writer in [w for w in WRITERS if not only or w.name in only]:
            for name, fn in KINDS.items():
                if (name in NEEDS_ROOT and not ROOT) or (name in NEEDS_MOUNTS and not MOUNTS):
                    left_out += 1
                else:
                    fn(Row(writer, name, top), inputs)
        if not only:
            folders(inputs, pathlib.Path(top))
            standard(inputs, pathlib.Path(top))
            twice(inputs, pathlib.Path(top))
    print("\n".join(bad))
    print(f"{len(bad)} faults" + (f", {left_out} rows left out: they need root" if left_out else ""))
    return 1 if bad else 0


sys.exit(main())
