#!/usr/bin/env python3
"""Slots of gpurun serve, saved and restored: slots.py GPURUN"""

import json
import os
import pathlib
import resource
import stat
import sys
import tempfile
import threading

from served import LIMIT, Served

PROGRAM = sys.argv[1]
REF = ["--cpu-level", "ref", "-t", "2"]
PROMPT = "Once upon a time there was a cat who lived in a house near the river"


def call(s, method, path, body=None, key=None):
    c = s.connect()
    c.request(method, path, json.dumps(body) if body is not None else None, {"Authorization": f"Bearer {key}"} if key else {})
    r = c.getresponse()
    answer = json.loads(r.read())
    c.close()
    return r.status, answer


def complete(s, prompt, key=None, **fields):
    status, got = call(s, "POST", "/completion", {"prompt": prompt, "n_predict": 12, "temperature": 0, "ignore_eos": True, **fields}, key)
    assert status == 200, got
    return got


def act(s, action, name=None, slot=0, key=None):
    return call(s, "POST", f"/slots/{slot}?action={action}", {"filename": name} if name is not None else None, key)


def good(s, *words, **more):
    status, got = act(s, *words, **more)
    assert status == 200, got
    return got


def from_one_to_the_next(folder):
    with Served(PROGRAM, [*REF, "--slot-save-path", str(folder / "new")]) as s:
        assert act(s, "save", "a.bin")[0] == 400  # no text yet
        first = complete(s, PROMPT, id_slot=0)
        complete(s, "Another text", id_slot=1)
        complete(s, "One of no slot")
        assert first["id_slot"] == 0
        n = first["tokens_evaluated"] + 11
        saved = good(s, "save", "a.bin")
        assert saved["id_slot"] == 0 and saved["filename"] == "a.bin" and saved["n_saved"] == n and saved["timings"]["save_ms"] > 0, saved
        file = folder / "new" / "a.bin"
        assert saved["n_written"] == file.stat().st_size and stat.S_IMODE(file.stat().st_mode) == 0o600
        assert [f.name for f in file.parent.iterdir()] == ["a.bin"]
        erased = good(s, "erase")
        assert erased == {"id_slot": 0, "n_erased": n}, erased
        assert complete(s, PROMPT)["tokens_cached"] < 5  # as other texts begin
        good(s, "save", "a b.bin", slot=1)
    with Served(PROGRAM, [*REF, "-np", "1", "--slot-save-path", str(file.parent)]) as s:
        back = good(s, "restore", "a.bin")
        assert (back["id_slot"], back["filename"], back["n_restored"], back["n_read"]) == (0, "a.bin", n, saved["n_written"]), back
        assert back["timings"]["restore_ms"] > 0
        again = complete(s, PROMPT)
        assert again["id_slot"] == 0 and again["content"] == first["content"], again  # of -np 1
        assert again["tokens_cached"] == first["tokens_evaluated"] - 1
        good(s, "save", "a.bin")
        data = bytearray(file.read_bytes())
        assert len(data) == saved["n_written"]
        data[len(data) // 2] ^= 4
        file.write_bytes(data)
        status, got = act(s, "restore", "a.bin")
        assert status == 400 and "damaged" in got["error"]["message"] and got["error"]["param"] == "filename", got
        file.write_text("x")
        assert act(s, "restore", "a.bin")[0] == 400
        good(s, "restore", "a b.bin")
    with Served(PROGRAM, [*REF, "-ctk", "q8_0", "--slot-save-path", str(file.parent)]) as s:
        status, got = act(s, "restore", "a b.bin")
        assert status == 400 and "K" in got["error"]["message"], got


def refusals(folder):
    (folder / "folder").mkdir()
    (folder / "link").symlink_to("/etc/passwd")
    with Served(PROGRAM, [*REF, "--slot-save-path", str(folder)]) as s:
        complete(s, PROMPT, id_slot=0)
        for name in "", ".", "..", "../a", "a/b", "/a", ".a", "a..b", "a\nb", "a\0b", "a\x7fb", "x" * 129, "key-0000000000000000-a", 7, None:
            for action in "save", "restore":
                status, got = act(s, action, name) if name is not None else call(s, "POST", f"/slots/0?action={action}", {})
                assert status == 400 and got["error"]["param"] == "filename", (action, name, got)
        for name in "none", "folder", "link":
            status, got = act(s, "restore", name)
            assert status == 404 and got["error"]["param"] == "filename", (name, got)
        assert act(s, "save", "folder")[0] == 500 and (folder / "folder").is_dir()
        for action in "", "other", "save&action=":
            assert act(s, action, "a")[0] == 400 or action.startswith("save"), action
        assert call(s, "POST", "/slots/0", {"filename": "a"})[0] == 400
        for slot in "4", "-1", "x", "0x", "", "99999999999":
            assert act(s, "save", "a", slot)[0] == 404, slot
        for value in 4, -2, "0", 0.5:
            status, error = s.refused("/completion", {"prompt": "a", "id_slot": value})
            assert status == 400 and error["param"] == "id_slot", error
    with Served(PROGRAM, REF) as s:
        for action in "save", "restore", "erase":
            status, got = act(s, action, "a")
            assert status == 501 and "--slot-save-path" in got["error"]["message"], got


def of_keys(folder):
    with Served(PROGRAM, [*REF, "--slot-save-path", str(folder), "--api-key", "a,b"]) as s:
        assert act(s, "save", "x")[0] == 401
        complete(s, PROMPT, key="a", id_slot=0)
        assert act(s, "save", "x", key="b")[0] == 400  # the slot is another one's
        good(s, "save", "x", key="a")
        assert act(s, "restore", "x", key="b")[0] == 404
        complete(s, "Something else", key="b", id_slot=0)
        assert good(s, "save", "x", key="b")["n_saved"] != good(s, "restore", "x", key="a")["n_restored"]
        assert len(list(folder.iterdir())) == 2
        mine, other = sorted(folder.iterdir(), key=lambda f: f.stat().st_size)[::-1]
        other.write_bytes(mine.read_bytes())  # by hand: the file says whose it is
        status, got = act(s, "restore", "x", key="b")
        assert status == 400 and "another key" in got["error"]["message"], got


def without_memory(folder):
    """No room for another thread: the answer says so, and not that the server stops."""
    with Served(PROGRAM, [*REF, "--slot-save-path", str(folder)]) as s:
        complete(s, PROMPT, id_slot=0)
        size = int(pathlib.Path(f"/proc/{s.process.pid}/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        if size > 1 << 36:
            print("without_memory: not with a sanitizer, which reserves more than can be limited")
            return
        before = resource.prlimit(s.process.pid, resource.RLIMIT_AS, (size + (1 << 20), resource.RLIM_INFINITY))
        status, got = act(s, "save", "a.bin")
        assert status == 503 and got["error"]["message"] == "out of memory", got
        resource.prlimit(s.process.pid, resource.RLIMIT_AS, before)
        good(s, "save", "a.bin")
    assert s.code == 0, (s.code, s.lines[-3:])


def many_at_once(folder):
    """Files that are written and read beside texts; at the end too."""
    wrong = []
    with Served(PROGRAM, [*REF, "--slot-save-path", str(folder)]) as s:
        want = complete(s, PROMPT, id_slot=0)["content"]
        good(s, "save", "x")

        def client(k):
            for _ in range(6):
                for action in ("save", "restore"):
                    status, got = act(s, action, f"x{k % 2}" if action == "save" else "x")
                    wrong.extend([got] if status not in (200, 429) else [])
                got = complete(s, PROMPT, id_slot=0)["content"]
                wrong.extend([got] if got != want else [])

        threads = [threading.Thread(target=client, args=(k,)) for k in range(6)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(LIMIT)
        assert not wrong, wrong[:3]
        c = s.connect()
        c.request("POST", "/slots/0?action=save", json.dumps({"filename": "last"}))
    assert s.code == 0, (s.code, s.lines[-3:])
    assert not [f for f in folder.iterdir() if ".tmp" in f.name]


for test in (from_one_to_the_next, refusals, of_keys, without_memory, many_at_once):
    with tempfile.TemporaryDirectory() as name:
        test(pathlib.Path(name))
