"""Tests of download.py about what stands in the way of a download: others that hold its part, folders in place of files, records of
another URL, and lists that lead astray."""

import fcntl
import os
import signal
import socket

import hub as hubs
from place import LIMIT, REPO, Place, blob, expect, hub, wait_for


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


def test_a_part_of_another_url():
    date = "Wed, 01 Jan 2025 00:00:00 GMT"
    for version in "12":
        path = f"/v{version}/m.gguf"
        hub.plain[path], hub.etags[path], hub.dates[path] = blob(version), None, date
    for version, status in ("1", 206), ("2", 200):
        p = Place()
        p.cache.mkdir()
        (p.cache / "m.gguf.part").write_bytes(blob("1")[:1000])
        (p.cache / "m.gguf.part.etag").write_text(f"{date}\n{hub.url}/v1/m.gguf\n")
        hub.forget()
        p.pulled(blob(version), f"{hub.url}/v{version}/m.gguf")
        expect(f"version {version}: its rest, or all of it", wait_for(lambda: [r[3] for r in hub.log] == [status]), hub.log)


def test_a_folder_in_the_place_of_a_link():
    data = blob("m")
    commit = hub.add(REPO, {"m-Q4_K_M.gguf": data})
    for env in {}, {"GR_TEST_NO_LINKS": "1"}:
        p = Place()
        snapshot = p.repo() / "snapshots" / commit
        (snapshot / "m-Q4_K_M.gguf" / "full").mkdir(parents=True)
        p.fails(6, "LLAMA_CACHE or HF_HOME chooses another folder", "pull", REPO, env=env)
        expect(f"{env}: what was downloaded stays", p.blobs() == [hubs.sha256(data)], p.blobs())
        expect(f"{env}: nothing else does", os.listdir(snapshot) == ["m-Q4_K_M.gguf"], os.listdir(snapshot))


def test_pages_that_lead_astray():
    p = Place()
    hub.add(REPO, {"m-Q4_K_M.gguf": blob("m")})
    with socket.create_server(("127.0.0.1", 0)) as other:
        other.setblocking(False)
        for scheme in "gopher", "dict", "ftp":
            hub.next = f"{scheme}://127.0.0.1:{other.getsockname()[1]}/1FLUSHALL%0d%0aX"
            p.fails(6, "its list goes on elsewhere: https:// or http:// is expected", "pull", REPO)
        try:
            other.accept()
            expect("nobody is asked", False)
        except BlockingIOError:
            pass
    hub.forget()
    hub.next = f"{hub.url}/api/models/{REPO}/tree/{hub.repos[REPO]['commit']}"
    p.fails(3, "its list has more than 100 pages", "pull", REPO)
    expect("not more are asked for", len(hub.requests("hub", "/tree/")) == 100, len(hub.log))
