"""Tests of download.py about what stands in the way of a download: others that hold its part, folders in place of files, records of
another URL, and lists that lead astray."""

import fcntl
import os
import signal

from place import LIMIT, Place, blob, expect, hub


def test_a_part_of_others():
    """What cannot be locked, or is no file, stays."""
    hub.plain["/u.gguf"] = blob("u")
    p = Place()
    p.cache.mkdir()
    part, record = p.cache / "u.gguf.part", p.cache / "u.gguf.part.etag"
    part.write_bytes(blob("u")[:1000])
    record.write_text(f'"version"\n{hub.url}/u.gguf\n')
    with open(part, "rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        run = p.start("pull", hub.url + "/u.gguf")
        line = [run.stderr.readline() for _ in range(2)][1]
        run.send_signal(signal.SIGINT)
        run.communicate(timeout=LIMIT)
    expect("Ctrl-C while it waits", "waiting for it" in line and run.returncode == 130, (line, run.returncode))
    expect("the part and its record stay", part.exists() and part.stat().st_size == 1000 and record.exists(), os.listdir(p.cache))
    os.remove(part)
    os.mkfifo(part)
    p.fails(6, "it is no file: remove it", "pull", hub.url + "/u.gguf")
    expect("what is no file stays", part.is_fifo() and record.exists(), os.listdir(p.cache))
