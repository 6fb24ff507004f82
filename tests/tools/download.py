#!/usr/bin/env python3
"""Downloads: download.py GPURUN_CLOCK SOURCE [quick | rest | TEST..]. The program fetches from a hub on the loopback
(download/hub.py) with waits that are GR_TEST_WAITS times as short."""

import json
import os
import pathlib
import pty
import random
import re
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent / "download"))
import faults  # noqa: E402
import hub as hubs  # noqa: E402
import place  # noqa: E402
from place import LIMIT, PROGRAM, REPO, SOURCE, Place, blob, expect, hub, ranges, top, wait_for  # noqa: E402

MODEL = (SOURCE / "tools/default-model.gguf").read_bytes()
TOKEN = "hf_secretsecretsecretsecretsecretsecret1"
# ---- a model of a repository ----


def test_run_and_cache():
    p, text = Place(), ["-p", "Once", "-n", 8, "--temp", 0, "--ignore-eos"]
    commit = hub.add(REPO, {"README.md": b"#", "Story-Q4_K_M.gguf": MODEL, "mmproj-Story-F16.gguf": blob("mmproj")})
    plain, _ = p.good("-m", SOURCE / "tools/default-model.gguf", *text)
    out, err = p.good("-hf", REPO, *text)
    expect("the text of the same file", out == plain, (out, plain))
    expect("a word about the projector", "also has mmproj-Story-F16.gguf" in err, err)
    link = p.repo() / "snapshots" / commit / "Story-Q4_K_M.gguf"
    expect("the layout of the cache", link.is_symlink() and os.readlink(link) == f"../../blobs/{hubs.sha256(MODEL)}"
           and (p.repo() / "refs/main").read_text() == commit and p.blobs() == [hubs.sha256(MODEL)],
           list(p.cache.rglob("*")))
    n = len(hub.requests("cdn"))
    note = (p.repo() / "refs/main").stat()
    out, err = p.good("-hf", REPO, *text)
    expect("nothing is written where all is there", (p.repo() / "refs/main").stat().st_ino == note.st_ino)
    expect("a second time: the list is asked for, the file is not", out == plain and len(hub.requests("cdn")) == n == 1
           and "download:" not in err, hub.log)
    n = len(hub.log)
    out, _ = p.good("-hf", REPO, "--offline", *text)
    expect("--offline asks nobody", out == plain and len(hub.log) == n, hub.log[n:])
    p.good("-q", *text, env={"LLAMA_ARG_HF_REPO": REPO, "LLAMA_ARG_OFFLINE": "1"})
    expect("variables", len(hub.log) == n)
    out, err = p.good("-hf", REPO, *text, env={"HF_ENDPOINT": "http://127.0.0.1:1"})
    expect("no hub: the copy is used", out == plain and "the copy in the cache is used" in err, err)
    hub.errors = [("refs", 503, {})]
    expect("a hub that is ill: the copy is used", "HTTP 503" in p.good("-hf", REPO, *text)[1])
    p.fails(3, "--offline forbids", "-hf", REPO + ":Q8_0", "--offline")
    p.fails(3, "--offline forbids", "-hf", "ann/other", "--offline")
    # a new commit with the same file: a link, and no file
    n = len(hub.requests("cdn"))
    newer = hub.add(REPO, {"README.md": b"new", "Story-Q4_K_M.gguf": MODEL})
    path = p.pulled(MODEL, REPO)
    expect("a new commit of the same content", newer in str(path) and len(hub.requests("cdn")) == n)


def test_where_the_cache_is():
    hub.add(REPO, {"a-Q8_0.gguf": blob("a", 1000)})
    p = Place()
    name = "models--ann--Story-GGUF"
    for env, folder in [({"HF_HUB_CACHE": "h1"}, "h1"), ({"HUGGINGFACE_HUB_CACHE": "h2"}, "h2"), ({"HF_HOME": "h3"}, "h3/hub"),
                        ({"XDG_CACHE_HOME": "h4"}, "h4/huggingface/hub"), ({}, ".cache/huggingface/hub")]:
        env = {"LLAMA_CACHE": None, **{k: str(p.dir / v) for k, v in env.items()}}
        p.pulled(blob("a", 1000), REPO, env=env)
        expect(f"the cache in {folder}", (p.dir / folder / name / "refs/main").exists(), list(p.dir.rglob("*")))
    hub.plain["/f.gguf"] = blob("f", 900)
    for env, folder in [({"XDG_CACHE_HOME": "h5"}, "h5/llama.cpp"), ({}, ".cache/llama.cpp")]:
        env = {"LLAMA_CACHE": None, **{k: str(p.dir / v) for k, v in env.items()}}
        p.pulled(blob("f", 900), hub.url + "/f.gguf", env=env)
        expect(f"files of URLs in {folder}", (p.dir / folder / "f.gguf").exists(), list(p.dir.rglob("*")))


def test_choice():
    files = {n: blob(n, 2000) for n in ["a-BF16.gguf", "a-Q8_0.gguf", "x/a-q4_k_m.gguf", "a-IQ4_NL.gguf", "imatrix.gguf",
                                        "mtp-a-Q2_K.gguf", "A b+c%.gguf"]}
    hub.add(REPO, files)
    p = Place()
    p.pulled(files["x/a-q4_k_m.gguf"], REPO)
    p.pulled(files["x/a-q4_k_m.gguf"], REPO + ":Q4_K_M")
    p.pulled(files["a-Q8_0.gguf"], REPO + ":q8_0")
    p.pulled(files["a-IQ4_NL.gguf"], "-hf", REPO + ":iq4_nl")
    p.pulled(files["imatrix.gguf"], "-hf", REPO, "-hff", "imatrix.gguf")
    p.pulled(files["A b+c%.gguf"], "-hf", REPO, "--hf-file", "a B+c%.gguf")
    p.fails(3, "no model with the tag Q2_K; its tags are: BF16, Q8_0, Q4_K_M, IQ4_NL", "pull", REPO + ":Q2_K")
    p.fails(3, "has no file b.gguf; the tags of its models are: BF16", "pull", "-hf", REPO, "-hff", "b.gguf")
    hub.add("ann/two", {"b-BF16.gguf": files["a-BF16.gguf"], "b-Q8_0.gguf": files["a-Q8_0.gguf"]})
    p.pulled(files["a-Q8_0.gguf"], "ann/two")
    hub.add("ann/one", {"mmproj-b.gguf": b"", "b-F16.gguf": files["a-BF16.gguf"]})
    p.pulled(files["a-BF16.gguf"], "ann/one")
    hub.add("ann/none", {"model.safetensors": b"x"})
    p.fails(3, "ann/none has no GGUF file", "pull", "ann/none")
    hub.git.add("g-F32.gguf")
    hub.add("ann/git", {"g-F32.gguf": files["a-BF16.gguf"]})
    p.pulled(files["a-BF16.gguf"], "ann/git")
    hub.page = 2
    p.pulled(files["A b+c%.gguf"], "-hf", REPO, "-hff", "A b+c%.gguf")
    expect("pages of the list", len(hub.requests("hub", "cursor=")) >= 3)


def test_parts():
    p = Place()
    (p.dir / "m.gguf").write_bytes(MODEL)
    p.good("split", "m.gguf", "m-Q4_K_M", "--split-max-tensors", 9)
    parts = sorted(p.dir.glob("m-Q4_K_M-*"))
    files = {"Q4/" + f.name: f.read_bytes() for f in parts}
    expect("parts", len(files) > 2, parts)
    hub.add(REPO, {"m-Q8_0-00001-of-00002.gguf": blob("x", 500), **dict(reversed(files.items()))})
    text = ["-p", "Once", "-n", 6, "--temp", 0]
    out, err = p.good("-hf", REPO, *text)
    expect("a model in parts", out == p.good("-m", "m.gguf", *text)[0], (out, err))
    expect("all parts are there", set(p.blobs()) == {hubs.sha256(d) for d in files.values()}, p.blobs())
    out, _ = p.good("pull", REPO, "--offline")
    expect("the path is that of the first part", out.strip().endswith(f"/Q4/m-Q4_K_M-00001-of-{len(files):05d}.gguf"), out)
    p.good("-hf", REPO, "-hff", "Q4/" + parts[1].name, *text)
    p.fails(3, "part 2 of 2 of m-Q8_0-00001-of-00002.gguf is missing", "pull", REPO + ":Q8_0")
    (p.dir / "to").mkdir()
    p.fails(2, "the name of a folder is expected", "pull", REPO, "-o", "x.gguf")
    n = len(hub.requests("cdn"))
    p.good("pull", REPO, "-o", "to")
    p.fails(2, "exists", "pull", REPO, "-o", "to", "--offline")
    p.good("pull", REPO, "-o", "to", "--offline", "--overwrite")
    expect("copies of what the cache has", sorted((p.dir / "to").iterdir()) == [p.dir / "to" / f.name for f in parts]
           and len(hub.requests("cdn")) == n, list(p.dir.rglob("*")))
    for name, data in files.items():
        hub.plain["/" + pathlib.Path(name).name] = data
    url = hub.url + "/" + parts[0].name
    out, _ = p.good("-mu", url, *text, env={"GPURUN_QUIET": "1"})
    expect("parts by URL", sorted(f.name for f in p.cache.glob("m-*.gguf")) == [f.name for f in parts], list(p.cache.iterdir()))
    (p.dir / "half").mkdir()
    (p.dir / "half" / parts[-1].name).write_bytes(b"mine")
    hub.forget()
    p.fails(2, "exists", "pull", url, "-o", "half")
    p.fails(2, "exists", "pull", REPO, "-o", "half")
    expect("a part that exists is seen before any is fetched", len(list((p.dir / "half").iterdir())) == 1
           and not hub.requests("cdn") and not hub.requests("hub", "/m-"), hub.log)
    os.remove(p.cache / parts[-1].name)
    p.fails(3, "--offline forbids", "pull", url, "--offline")
    (p.dir / "w").mkdir()
    p.good("-mu", url + "?download=true", "-m", "w/" + parts[0].name, *text)
    expect("parts beside -m", len(list((p.dir / "w").glob("*.gguf"))) == len(parts))


def test_commands():
    p = Place()
    hub.add(REPO, {"m-Q4_K_M.gguf": MODEL})
    p.good("pull", REPO)
    (p.dir / "text").write_text("Once upon a time there was a girl. " * 40)
    session = SOURCE / "tests/golden/replay/session.json"
    for words in [["tokenize", "-p", "Once"], ["embed", "-p", "Once"], ["inspect"], ["fit"], ["profile"],
                  ["diff", "-p", "Once", "-a", "-ngl 0"], ["perplexity", "-f", "text", "-c", 64],
                  ["imatrix", "-f", "text", "-c", 64, "-o", "i.gguf"], ["bench", "-p", 8, "-n", 1, "-r", 1],
                  ["replay", session, "--hash"]]:
        env = {"HF_TOKEN": TOKEN}
        out, err = p.good(words[0], "-hf", REPO, "-hft", TOKEN, *words[1:], env=env)
        plain, _ = p.good(words[0], "-m", SOURCE / "tools/default-model.gguf", *words[1:],
                          *(["--overwrite"] if words[0] == "imatrix" else []))
        expect(f"{words[0]}: the token is not printed", TOKEN not in out + err, out + err)
        if words[0] in ("tokenize", "embed", "perplexity", "inspect"):
            expect(f"{words[0]}: the same result", out.splitlines()[-2:] == plain.splitlines()[-2:], (out, plain))
    out, _ = p.good("fit", "-hf", REPO)
    line = out.splitlines()[-1]
    expect("fit prints a command that runs", " -m " in line and "-hf" not in line, line)
    out, _ = p.good("bench", "-hf", REPO, "-p", 8, "-n", 1, "-r", 1, "-o", "json")
    expect("bench names the file", json.loads(out)[0]["model_filename"].endswith("m-Q4_K_M.gguf"), out[:300])


# ---- what is asked for ----


def test_usage():
    p = Place()
    url = hub.url + "/x.gguf"
    for words, text in [(["-hf", "a/b", "-m", "c.gguf"], "-hf and -m both give the model"),
                        (["-hf", "a/b", "-mu", url], "-hf and -mu both give the model"),
                        (["-hf", "a/b", "c.gguf"], "-hf and -m both give the model"),
                        (["bench", "-mu", url, "-m", "c.gguf"], "-mu and -m both give the model"),
                        (["-hff", "x.gguf"], "-hf USER/REPO is expected"),
                        (["-hf", "story"], "USER/REPO"), (["-hf", "a/b/c"], "USER/REPO"), (["-hf", "../b"], "USER/REPO"),
                        (["-hf", "a/b:"], "USER/REPO"), (["-hf", "a/b?x"], "USER/REPO"), (["-hf", "a--b/c"], "USER/REPO"),
                        (["-mu", "file:///etc/passwd"], "https:// or http:// is expected"),
                        (["-mu", "ftp://a.b/c.gguf"], "https:// or http:// is expected"),
                        (["-mu", "sftp://a.b/c.gguf"], "https:// or http:// is expected"),
                        (["-mu", "a.b/c.gguf"], "it is no URL"), (["-mu", "http://"], "it is no URL"),
                        (["-mu", "what://a.b/c.gguf"], "https:// or http:// is expected"),
                        (["-mu", "http://:80/c.gguf"], "it is no URL"),
                        (["-mu", hub.url + "/"], "does not end with the name of a file"),
                        (["-mu", hub.url + "/.."], "does not end with the name of a file"),
                        (["-mu", hub.url + "/" + "x" * 300], "does not end with the name of a file"),
                        (["pull"], "usage: gpurun pull"), (["pull", "x"], "USER/REPO"), (["pull", "-mu", url, "-hf", "a/b"], "both"),
                        (["pull", "a/b", "c/d"], "unexpected argument")]:
        p.fails(2, text, *words)
    p.fails(2, "HF_ENDPOINT", "pull", "a/b", env={"HF_ENDPOINT": "ftp://x"})
    expect("nothing was asked", not hub.log and not p.cache.exists(), hub.log)
    hub.add("a/b", {"x-Q8_0.gguf": blob("x", 999)})
    p.pulled(blob("x", 999), "a/b", env={"HF_ENDPOINT": "ftp://x", "MODEL_ENDPOINT": hub.url + "/"})
    # the command line counts more than variables
    hub.plain["/y.gguf"] = MODEL
    p.good("-mu", hub.url + "/y.gguf", "-p", "a", "-n", 1, env={"LLAMA_ARG_MODEL": "no.gguf", "GPURUN_HF_REPO": "no/no"})
    p.good("-m", SOURCE / "tools/default-model.gguf", "-p", "a", "-n", 1, env={"LLAMA_ARG_HF_REPO": "no/no", "GPURUN_HF_FILE": "x"})


def test_token():
    hub.add(REPO, {"m-Q4_K_M.gguf": blob("m")})
    hub.token = TOKEN
    p = Place()
    err = p.fails(3, "HTTP 401: access to this repository is restricted; it does not exist, or", "pull", REPO)
    expect("what helps", "HF_TOKEN" in err, err)
    p.fails(3, "HTTP 401", "pull", REPO, env={"HF_TOKEN": "hf_another"})
    for token in ["hf_a b", "hf_a\r\nX: y", "hf_ü"]:
        err = p.fails(2, "has characters that no token has", "pull", REPO, "-hft", token)
        expect("a wrong token is not printed", "hf_a" not in err and "ü" not in err, err)
    hub.gated = True
    p.fails(3, "HTTP 403", "pull", REPO)
    hub.forget()
    hub.drops = [1000]
    _, err = p.good("pull", "-v", REPO, env={"HF_TOKEN": TOKEN})
    expect("the hub gets it", all(r[2].get("Authorization") == f"Bearer {TOKEN}" for r in hub.requests("hub")), hub.log)
    expect("nobody else does", len(hub.requests("cdn")) == 2 and not any("Authorization" in r[2] for r in hub.requests("cdn")),
           hub.log)
    expect("it is not printed, nor are signatures", "secret" not in err, err)
    hub.forget()
    p2 = Place()
    p2.pulled(blob("m"), REPO, "-hft", TOKEN, env={"HF_TOKEN": "hf_another"})
    hub.plain["/u.gguf"] = blob("u", 2000)
    p2.pulled(blob("u", 2000), hub.cdn + "/u.gguf", "-hft", TOKEN)
    expect("nor another host by URL", "Authorization" not in hub.requests("cdn", "/u.gguf")[0][2])
    p2.pulled(blob("u", 2000), hub.url + "/u.gguf", "-hft", TOKEN, "-o", p2.dir / "u.gguf")
    expect("but the hub by URL", hub.requests("hub", "/u.gguf")[0][2].get("Authorization") == f"Bearer {TOKEN}")
    out, _ = p2.good("profile", "-hf", REPO, "-hft", TOKEN, "--hf-token=" + TOKEN, "-n", 3)
    expect("profile leaves it out", TOKEN not in out and f"-hf {REPO} -n 3" in out, out)


def test_refused():
    p = Place()
    p.fails(3, "ann/nothing: HTTP 404: Repository not found", "pull", "ann/nothing")
    hub.plain["/x.gguf"] = blob("x")
    hub.errors = [("x.gguf", 403, {"X-Error-Message": "ask the owner"})]
    hub.plain_errors = True
    p.fails(3, "HTTP 403: ask the owner; reading it takes", "pull", hub.url + "/x.gguf")
    hub.plain_errors = False
    for status, code in [(404, 3), (410, 3), (401, 3), (403, 3), (400, 6), (204, 6)]:
        hub.errors = [("x.gguf", status, {})]
        p.fails(code, f"HTTP {status}", "pull", hub.url + "/x.gguf")
    hub.errors = [("x.gguf", 503, {})] * 6
    err = p.fails(6, "HTTP 503: not now (6 attempts)", "pull", hub.url + "/x.gguf")
    expect("waits become longer", re.findall(r"again in (\d+) s", err) == ["1", "2", "4", "8", "16"], err)
    hub.errors = [("x.gguf", 429, {"Retry-After": "9999"})]
    p.fails(6, "asks to wait 9999 s", "pull", hub.url + "/x.gguf")
    hub.errors = [("refs", 429, {"Retry-After": "3"}), ("tree", 500, {}), ("resolve", 502, {}), ("cdn", 504, {})]
    hub.add(REPO, {"m-Q8_0.gguf": blob("m")})
    _, err = p.good("pull", REPO)
    expect("attempts of everything", "HTTP 429: not now; trying again in 3 s" in err and "HTTP 502" in err, err)
    p.fails(6, "(2 attempts)", "pull", "ann/x", env={"HF_ENDPOINT": "http://127.0.0.1:1"})
    p.fails(6, "(2 attempts)", "pull", "http://no.such.host.invalid/x.gguf")
    expect("nothing is left of what failed", not list(p.cache.glob("x.gguf*")), list(p.cache.iterdir()))


def test_redirects():
    p = Place()
    hub.plain["/there.gguf"] = blob("t", 5000)
    hub.redirects = {"/loop.gguf": "/loop.gguf", "/file.gguf": "file:///etc/passwd", "/ftp.gguf": "ftp://a.b/c",
                     "/a.gguf": hub.cdn + "/b.gguf", "/b.gguf": "/there.gguf"}
    p.fails(6, "too many redirects", "pull", hub.url + "/loop.gguf")
    p.fails(6, "https:// or http:// is expected", "pull", hub.url + "/file.gguf")
    p.fails(6, "https:// or http:// is expected", "pull", hub.url + "/ftp.gguf")
    path = p.pulled(blob("t", 5000), hub.url + "/a.gguf")
    expect("the name is that of the URL", path.name == "a.gguf", path)


# ---- what can go wrong with a file ----


def test_resume_of_a_repository():
    data = blob("m", 1_200_000)
    hub.add(REPO, {"m-Q4_K_M.gguf": data})
    p = Place()
    hub.drops = [500_000, 100_000]
    p.pulled(data, REPO)
    expect("dropped connections: the rest is asked for", ranges("m-Q4_K_M.gguf?") == [None, "bytes=500000-", "bytes=600000-"],
           ranges())
    expect("no byte twice", sum(r[4] for r in hub.requests("cdn")) == len(data), hub.log)
    # interrupted, and continued by the next run
    hub.forget()
    hub.pause = 0.02
    p = Place()
    run = p.start("pull", REPO)
    part = p.repo() / "blobs" / (hubs.sha256(data) + ".part")
    wait_for(lambda: part.exists() and part.stat().st_size > 100_000)
    run.send_signal(signal.SIGINT)
    _, err = run.communicate(timeout=LIMIT)
    expect("Ctrl-C: exit code 130, and a word", run.returncode == 130 and "goes on from there" in err, (run.returncode, err))
    n = part.stat().st_size
    expect("the part stays", 100_000 < n < len(data) and part.read_bytes() == data[:n], n)
    hub.forget()
    hub.pause = 0
    p.pulled(data, REPO)
    expect("the next run goes on", ranges("m-Q4_K_M.gguf?")[-1] == f"bytes={n}-" and not part.exists(), ranges())
    # complete, but neither checked nor renamed
    p = Place()
    (p.repo() / "blobs").mkdir(parents=True)
    part = p.repo() / "blobs" / (hubs.sha256(data) + ".part")
    part.write_bytes(data)
    hub.forget()
    p.pulled(data, REPO)
    expect("a complete part needs no request", not hub.requests("cdn"))
    # parts that are wrong
    for wrong in [b"x" * 1000, data[:1000] + b"x", data + b"x", data[:-1] + bytes([data[-1] ^ 1])]:
        p = Place()
        (p.repo() / "blobs").mkdir(parents=True)
        (p.repo() / "blobs" / part.name).write_bytes(wrong)
        p.pulled(data, REPO)
    # servers that do not do ranges well
    for ranges_, shift in [(False, 0), (True, 5)]:
        hub.ranges, hub.shift, hub.drops = ranges_, shift, [500_000]
        p = Place()
        p.pulled(data, REPO)


def test_resume_of_a_url():
    data, other = blob("u", 2_000_000), blob("v", 1_500_000)
    url = hub.url + "/u.gguf"

    def interrupted(**how):
        """A part of 600 kB, left by a run that was killed."""
        p = Place()
        hub.forget()
        hub.plain["/u.gguf"], hub.drops, hub.stall = data, [600_000], 30
        for k, v in how.items():
            getattr(hub, k)["/u.gguf"] = v
        run = p.start("pull", url)
        part = p.cache / "u.gguf.part"
        wait_for(lambda: part.exists() and part.stat().st_size == 600_000 and (p.cache / "u.gguf.part.etag").exists())
        run.kill()
        run.communicate()
        hub.drops, hub.stall = [], 0
        expect("a part", part.stat().st_size == 600_000)
        return p

    p = interrupted()
    p.pulled(data, url)
    asked = hub.requests("hub", "u.gguf")[-1][2]
    expect("If-Range", asked.get("If-Range") == f'"{hubs.sha256(data)[:16]}"' and asked.get("Range") == "bytes=600000-", asked)
    p = interrupted()
    hub.plain["/u.gguf"] = other
    p.pulled(other, url)
    expect("a file that has changed starts anew", hub.log[-1][3] == 200, hub.log)
    date = "Wed, 01 Jan 2025 00:00:00 GMT"
    p = interrupted(etags=None, dates=date)
    p.pulled(data, url)
    expect("by the date", hub.requests("hub", "u.gguf")[-1][2].get("If-Range") == date and hub.log[-1][3] == 206, hub.log)
    hub.dates.clear()
    for etag in [None, 'W/"weak"']:
        p = interrupted(etags=etag)
        p.pulled(data, url)
        expect("what may have changed starts anew", hub.log[-1][3] == 200 and not ranges()[-1], hub.log)
    hub.etags.clear()
    p = interrupted()
    hub.etags["/u.gguf"] = f'"{hubs.sha256(data)[:16]}"'
    hub.plain["/u.gguf"] = data[:400_000]
    p.pulled(data[:400_000], url)
    expect("a file that is shorter now", [r[3] for r in hub.log[-2:]] == [416, 200], hub.log)
    p = interrupted()
    (p.cache / "u.gguf.part").write_bytes(data)
    hub.plain["/u.gguf"] = data
    p.pulled(data, url)
    expect("a complete part", hub.log[-1][3] == 416, hub.log)
    p = interrupted()
    hub.plain["/u.gguf"], hub.etags["/u.gguf"] = other, f'"{hubs.sha256(data)[:16]}"'
    hub.linked["/u.gguf"] = f'"{hubs.sha256(other)}"'
    p.pulled(other, url)
    expect("a server that lies about versions: the digest shows it", hub.log[-1][3] == 200, hub.log)


def test_digests():
    data = blob("m", 100_000)
    hub.add(REPO, {"m-Q4_K_M.gguf": data})
    hub.corrupt = {"m-Q4_K_M.gguf", "/u.gguf"}
    p = Place()
    p.fails(6, "its digest is", "pull", REPO)
    expect("what is wrong is removed", p.blobs() == [], p.blobs())
    hub.plain["/u.gguf"], hub.linked["/u.gguf"] = data, f'"{hubs.sha256(data)}"'
    p.fails(6, "its digest is", "pull", hub.url + "/u.gguf")
    expect("by URL too", not list(p.cache.glob("u.gguf*")), list(p.cache.iterdir()))
    hub.git.add("m-Q4_K_M.gguf")
    p.fails(6, "its digest is", "pull", REPO)
    hub.corrupt = set()
    p.pulled(data, REPO)
    # a blob that was cut short later
    p = Place()
    path = p.pulled(data, REPO)
    os.truncate(path.resolve(), 5000)
    p.pulled(data, REPO)


def test_lies():
    data = blob("m", 100_000)
    hub.add(REPO, {"m-Q4_K_M.gguf": data})
    url = hub.url + "/u.gguf"
    hub.plain["/u.gguf"] = data
    p = Place()
    hub.sizes["m-Q4_K_M.gguf"] = 99_000
    p.fails(6, "the server says that it has 100000 bytes, and 99000 are expected", "pull", REPO)
    hub.sizes.clear()
    hub.lengths = {"/u.gguf": None, "m-Q4_K_M.gguf": None}
    p.fails(6, "does not say how long", "pull", url)
    p.pulled(data, REPO)  # the list says how long
    p = Place()
    hub.sizes["m-Q4_K_M.gguf"] = 99_000
    p.fails(6, "sends more than the 99000 bytes", "pull", REPO)
    expect("no byte beyond what was announced", sum((p.repo() / "blobs" / b).stat().st_size for b in p.blobs()) <= 99_000)
    hub.sizes.clear()
    hub.lengths = {"/u.gguf": 10**15}
    p.fails(6, "the disk has room for", "pull", url)
    hub.add("ann/large", {f"l-Q8_0-0000{i}-of-00002.gguf": blob("l", 1000) for i in (1, 2)})
    hub.sizes["l-Q8_0-00002-of-00002.gguf"] = 10**18
    p.fails(6, "the disk has room for", "pull", "ann/large")
    expect("before the first part", not list(p.repo("ann/large").rglob("*-of-*")), list(p.repo("ann/large").rglob("*")))
    hub.sizes.clear()
    hub.lengths = {"/u.gguf": 200_000}
    p.fails(6, "something else each time", "pull", url)  # the rest never comes
    hub.lengths = {"/u.gguf": 50_000}
    p.pulled(data[:50_000], url)  # what is behind it is not looked at
    hub.lengths = {}
    hub.plain["/page.gguf"] = b"<!doctype html><html>log in</html>"
    p.fails(3, "no GGUF file: expected 'GGUF', found '<!do'", "pull", hub.url + "/page.gguf")
    expect("a page leaves nothing", not list(p.cache.glob("page*")), list(p.cache.iterdir()))
    for headers, text in [(b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n", ""), (b"HTTP/1.1 200 OK\r\nContent-Length: 1e9\r\n\r\n", ""),
                          (b"HTTP/1.1 999999999999 X\r\n\r\n", ""), (b"\0" * 5000, ""), (b"HTTP/1.1 200 OK\r\n" + b"X: " + b"y" * 200_000, ""),
                          (b"HTTP/1.1 302 Found\r\nLocation: " + b"http://" + b"a" * 9000 + b"/\r\n\r\n", ""), (b"", "")]:
        hub.raw["/raw.gguf"] = (headers, b"GGUF")
        p.fails(6, text, "pull", hub.url + "/raw.gguf", env={"GR_TEST_WAITS": "1000"})
    p = Place()
    api = "/api/models/ann/Story-GGUF/"
    for path, body in [("refs", b"{"), ("refs", b"[]"), ("refs", b'{"branches": [{"name": "../x", "targetCommit": "' + b"a" * 40 + b'"}]}'),
                       ("refs", b'{"branches": [{"name": "main", "targetCommit": "../../x"}]}'), ("refs", b"[" * 100_000)]:
        hub.raw[api + path] = (b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body), body)
        code, _, err = p.run("pull", REPO)
        expect(f"{body[:40]}: an error", code in (3, 6) and len(err.splitlines()) == 1, (code, err))
    hub.raw.pop(api + "refs")
    tree = api + "tree/" + hub.repos[REPO]["commit"]
    for body in [b"{}", b"null", b'["x", 5, {"type": "file"}, {"type": "file", "path": 7, "oid": {}, "size": "x"}]', b"[", b" " * (17 << 20)]:
        hub.raw[tree] = (b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body), body)
        code, _, err = p.run("pull", REPO)
        expect(f"{body[:40]}: an error", code in (3, 6) and len(err.splitlines()) == 1, (code, err))
    expect("nothing was written", not list(p.dir.rglob("*.gguf")) and p.blobs() == [], list(p.dir.rglob("*")))


def test_hostile_names():
    p = Place()
    data = blob("m", 1000)
    hub.add(REPO, {"m-Q4_K_M.gguf": data})
    names = ["../x-Q4_K_M.gguf", "/tmp/x-Q4_K_M.gguf", "a/../../x-Q4_K_M.gguf", "a//x-Q4_K_M.gguf", "./x-Q4_K_M.gguf", "..",
             "x" * 300 + "-Q4_K_M.gguf", "/".join("a" * 20) + "/x-Q4_K_M.gguf", "a\nb-Q4_K_M.gguf", "a\x1b[2Jb-Q4_K_M.gguf",
             "..\\x-Q4_K_M.gguf", ""]
    hub.extra = [{"type": "file", "path": n, "size": len(data), "oid": "0" * 40, "lfs": {"oid": hubs.sha256(data), "size": len(data)}}
                 for n in names]
    hub.extra.append({**hub.extra[0], "path": "b-Q2_K.gguf", "lfs": {"oid": "../../../../x", "size": 5}})
    before = sorted(pathlib.Path(top.name).rglob("*"))
    _, err = p.good("pull", REPO)
    expect("each is told of", err.count("warning: the hub lists a file whose name leads out") == len(names) and "\x1b" not in err, err)
    for n in names[:3]:
        p.fails(3, "has no file", "pull", "-hf", REPO, "-hff", n)
    p.fails(3, "no model with the tag", "pull", REPO + ":Q2_K")
    new = [f for f in pathlib.Path(top.name).rglob("*") if f not in before and not str(f).startswith(str(p.cache))]
    expect("nothing is written elsewhere", not new and not os.path.exists("/tmp/x-Q4_K_M.gguf"), new)
    hub.extra = [{**hub.extra[0], "path": "a\0b.gguf"}]
    p2 = Place()
    p2.fails(6, "no JSON", "pull", REPO)
    hub.extra = [{**hub.extra[0], "path": "m-Q4_K_M.gguf/x-Q8_0.gguf"}]  # a file and a folder of one name
    p3 = Place()
    p3.pulled(data, REPO)
    p3.fails(6, "LLAMA_CACHE or HF_HOME chooses another folder", "pull", REPO + ":Q8_0")


def test_stalls():
    data = blob("m", 400_000)
    hub.plain["/u.gguf"] = data
    hub.drops, hub.stall = [100_000], 20
    p = Place()
    p.variables["GR_TEST_LIMITS"] = "30"
    p.pulled(data, hub.url + "/u.gguf")
    expect("a silent server: the rest is asked for again", ranges()[-1] == "bytes=100000-", hub.log)
    del p.variables["GR_TEST_LIMITS"]
    large = blob("l", 10_000_000)
    hub.plain["/l.gguf"], hub.drops, hub.stall = large, [1_100_000] * 8, 0
    p.pulled(large, hub.url + "/l.gguf")
    hub.plain["/k.gguf"], hub.drops = data, [10_000] * 6
    p.fails(6, "(6 attempts); what came so far stays: the same command goes on", "pull", hub.url + "/k.gguf")
    p.pulled(data, hub.url + "/k.gguf")
    expect("from there", ranges("k.gguf")[-1] == "bytes=60000-", ranges("k.gguf"))


def test_two_at_once():
    data = blob("m", 1_000_000)
    hub.add(REPO, {"m-Q4_K_M.gguf": data})
    hub.plain["/u.gguf"] = data
    hub.pause = 0.002
    for words in [[REPO], [hub.url + "/u.gguf"]]:
        p = Place()
        hub.forget()
        runs = [p.start("pull", *words) for _ in range(3)]
        done = [(r.communicate(timeout=LIMIT), r.returncode) for r in runs]
        expect("all have it", all(c == 0 for _, c in done) and len({o for (o, _), _ in done}) == 1
               and pathlib.Path(done[0][0][0].strip()).read_bytes() == data, done)
        expect("others waited", any("waiting for it" in e for (_, e), _ in done), done)
        sent = sum(r[4] for r in hub.log if r[3] in (200, 206) and "/api/" not in r[1])
        expect("it came once", sent < 1.5 * len(data), hub.log)
        expect("nothing else is left", not list(p.cache.rglob("*.part*")), list(p.cache.rglob("*")))
    # one is killed, the other goes on
    p = Place()
    hub.forget()
    first = p.start("pull", REPO)
    part = p.repo() / "blobs" / (hubs.sha256(data) + ".part")
    wait_for(lambda: part.exists() and part.stat().st_size > 50_000)
    second = p.start("pull", REPO)
    time.sleep(0.05)
    first.kill()
    first.communicate()
    out, err = second.communicate(timeout=LIMIT)
    expect("the other goes on", second.returncode == 0 and pathlib.Path(out.strip()).read_bytes() == data, err)


# ---- files by URL, and pull -o ----


def test_urls():
    data, other = MODEL, blob("v", 5000)
    hub.plain["/d/story.gguf"] = data
    url = hub.url + "/d/story.gguf?download=true&key=secret"
    text = ["-p", "Once", "-n", 4, "--temp", 0]
    p = Place()
    out, err = p.good("-mu", url, *text)
    expect("no secrets in messages", "secret" not in err, err)
    expect("the cache", (p.cache / "story.gguf").read_bytes() == data, list(p.cache.iterdir()))
    record = (p.cache / "story.gguf.etag").read_text().splitlines()
    expect("its version and origin", record == [f'"{hubs.sha256(data)[:16]}"', hub.url + "/d/story.gguf"], record)
    p.good("-mu", url, *text)
    expect("not modified", [r[3] for r in hub.log] == [200, 304], hub.log)
    hub.forget()
    p.good("-mu", url, "--offline", *text)
    expect("--offline", not hub.log)
    hub.etags["/d/story.gguf"] = '"another"'
    hub.plain["/d/story.gguf"] = other
    p.pulled(other, url)
    hub.errors = [("story", 500, {})]
    expect("an ill server: the copy is used", "the copy in" in p.good("pull", url)[1])
    hub.errors = [("story", 404, {})]
    expect("a file that is gone: the copy is used", "HTTP 404; the copy in" in p.good("pull", url)[1])
    p.fails(3, f"is from {hub.url}/d/story.gguf; -m FILE puts this one elsewhere", "-mu", hub.cdn + "/story.gguf")
    # servers without versions: by the size
    hub.plain["/n.gguf"], hub.etags["/n.gguf"] = blob("n", 3000), None
    p.pulled(blob("n", 3000), hub.url + "/n.gguf")
    hub.forget()
    p.pulled(blob("n", 3000), hub.url + "/n.gguf")
    hub.plain["/n.gguf"] = blob("n2", 3001)
    p.pulled(blob("n2", 3001), hub.url + "/n.gguf")
    # a file that llama.cpp downloaded
    (p.cache / "l.gguf").write_bytes(blob("l", 700))
    (p.cache / "l.gguf.etag").write_text('"l1"')
    hub.plain["/l.gguf"], hub.etags["/l.gguf"] = blob("l", 700), '"l1"'
    hub.forget()
    p.pulled(blob("l", 700), hub.url + "/l.gguf")
    expect("its version is asked for", [r[3] for r in hub.log] == [304], hub.log)
    # -m FILE
    p = Place()
    hub.plain["/d/story.gguf"] = MODEL
    p.good("-mu", url, "-m", "mine.gguf", *text)
    expect("-m says where", (p.dir / "mine.gguf").read_bytes() == MODEL and not p.cache.exists(), list(p.dir.iterdir()))
    (p.dir / "own.gguf").write_bytes(MODEL)
    hub.forget()
    _, err = p.good("-mu", url, "-m", "own.gguf", *text)
    expect("a file of the user's stays", not hub.log and "used as it is" in err, err)
    p.fails(6, "there is no folder", "-mu", url, "-m", "none/x.gguf")


def test_pull_to():
    data = blob("m", 50_000)
    hub.add(REPO, {"x/m-Q4_K_M.gguf": data})
    hub.plain["/u.gguf"] = data
    p = Place()
    expect("the path", p.pulled(data, REPO, "-o", p.dir / "a.gguf") == p.dir / "a.gguf")
    expect("the cache stays empty", not list(p.cache.rglob("*")), list(p.cache.rglob("*")))
    hub.forget()
    p.fails(2, "a.gguf exists", "pull", REPO, "-o", "a.gguf")
    expect("before any byte of the file", not hub.requests("cdn"))
    for old in [b"old", b"x" * len(data)]:
        (p.dir / "a.gguf").write_bytes(old)
        p.pulled(data, REPO, "-o", p.dir / "a.gguf", "--overwrite")
    (p.dir / "folder").mkdir()
    p.pulled(data, hub.url + "/u.gguf", "-o", p.dir / "folder")
    p.pulled(data, REPO, "-o", p.dir / "folder")
    expect("names in a folder", sorted(f.name for f in (p.dir / "folder").glob("*.gguf")) == ["m-Q4_K_M.gguf", "u.gguf"])
    p.fails(2, "u.gguf exists", "pull", hub.url + "/u.gguf", "-o", "folder")
    p.fails(6, "there is no folder", "pull", REPO, "-o", "none/a.gguf")
    p.fails(2, "is a device", "pull", REPO, "-o", "/dev/null")
    (p.dir / "link.gguf").symlink_to("target.gguf")
    p.pulled(data, REPO, "-o", p.dir / "link.gguf")
    expect("a link stays", (p.dir / "link.gguf").is_symlink() and (p.dir / "target.gguf").read_bytes() == data,
           list(p.dir.iterdir()))
    # resumed
    hub.drops, hub.pause = [], 0.05
    run = p.start("pull", REPO, "-o", "b.gguf")
    wait_for(lambda: (p.dir / "b.gguf.part").exists() and (p.dir / "b.gguf.part").stat().st_size > 0)
    run.kill()
    run.communicate()
    hub.forget()
    hub.pause = 0
    p.pulled(data, REPO, "-o", p.dir / "b.gguf")
    expect("it goes on", ranges("m-Q4_K_M")[-1] is not None, ranges())


# ---- what is shown ----


def on_terminal(p, *words, env=None):
    pid, fd = pty.fork()
    if pid == 0:
        os.chdir(p.dir)
        os.execve(PROGRAM, ["gpurun", *map(str, words)], p.env({"TERM": "xterm", **(env or {})}))
    shown = b""
    while True:
        try:
            piece = os.read(fd, 65536)
        except OSError:
            break
        if not piece:
            break
        shown += piece
    os.close(fd)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown


def test_progress():
    data = blob("m", 400_000)
    hub.add(REPO, {"m-Q4_K_M.gguf": data})
    hub.pause = 0.004
    fast = {"GR_TEST_CLOCK": "300"}
    p = Place()
    code, shown = on_terminal(p, "pull", REPO, env=fast)
    expect("a bar", code == 0 and re.search(rb"\rdownload \[#+-*\] \d+ %, [\d.]+ KiB of 391 KiB, [\d.]+ \w+/s, about", shown), shown)
    expect("it goes", re.search(rb"\r\x1b\[K[^\[]*gguf\r\n$", shown), shown[-300:])
    _, err = Place().good("pull", REPO, env=fast)
    expect("lines elsewhere", len(re.findall(r"^download: \d+ %, ", err, re.M)) > 1 and "\x1b" not in err, err)
    p = Place()
    out, err = p.good("pull", "-q", REPO, env=fast)
    expect("-q: the path alone", err == "" and len(out.splitlines()) == 1, (out, err))
    part = p.repo() / "blobs" / (hubs.sha256(data) + ".part")
    p.pulled(data, REPO)
    os.remove((p.repo() / "blobs" / hubs.sha256(data)))
    part.write_bytes(data[:200_000])
    _, err = p.good("pull", REPO, env=fast)
    expect("what was there counts", min(map(int, re.findall(r"^download: (\d+) %", err, re.M)), default=0) >= 50, err)


def test_without_libcurl():
    p = Place()
    hub.add(REPO, {"m-Q4_K_M.gguf": MODEL})
    p.good("pull", REPO)
    for name in ["libcurl.so.4", "libcurl-gnutls.so.4"]:
        (p.dir / name).write_bytes(b"none")
    without = {"LD_LIBRARY_PATH": str(p.dir)}
    p.fails(6, "downloading takes libcurl (Debian: libcurl4)", "pull", REPO, env=without)
    p.good("-hf", REPO, "--offline", "-p", "a", "-n", 1, env=without)
    p.good("version", env=without)


def test_without_links():
    p, env = Place(), {"GR_TEST_NO_LINKS": "1"}
    hub.add(REPO, {"x/m-Q4_K_M.gguf": blob("m")})
    path = p.pulled(blob("m"), REPO, env=env)
    expect("the content is in the snapshot", not path.is_symlink() and "snapshots" in str(path) and p.blobs() == [], path)
    p.pulled(blob("m"), REPO, env=env)
    p.pulled(blob("m"), REPO, "--offline", env=env)
    expect("it came once", len(hub.requests("cdn")) == 1)


def test_https():
    p = Place()
    pem = p.dir / "pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
                    "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", p.dir / "key", "-out", pem],
                   check=True, capture_output=True)
    with open(p.dir / "both", "wb") as f:
        f.write((p.dir / "key").read_bytes() + pem.read_bytes())
    safe = hubs.Hub(p.dir / "both")
    safe.add(REPO, {"m-Q4_K_M.gguf": blob("m")})
    safe.redirects["/down.gguf"] = hub.url + "/x.gguf"
    p.variables["HF_ENDPOINT"] = safe.url
    p.fails(6, "SSL_CERT_FILE names", "pull", REPO)
    p.pulled(blob("m"), REPO, env={"SSL_CERT_FILE": str(pem)})
    p.fails(6, "from https to http", "pull", safe.url + "/down.gguf", env={"SSL_CERT_FILE": str(pem)})
    safe.next = hub.url + "/list"
    p.fails(6, "its list goes on elsewhere: it leads from https to http", "pull", REPO + ":Q8_0", env={"SSL_CERT_FILE": str(pem)})
    expect("nothing is asked for without https", not hub.log, hub.log)
    safe.close()


# ---- killed at random ----


def test_trials():
    """Killed at random moments, and continued: the bytes are right."""
    data = blob("m", 2_000_000)
    hub.add(REPO, {"m-Q4_K_M.gguf": data})
    hub.plain["/u.gguf"] = data
    killed = 0
    for seed in range(20):
        for words in [[REPO], [hub.url + "/u.gguf"]]:
            rng, p = random.Random(seed), Place()
            hub.forget()
            hub.pause = 0.002
            for _ in range(rng.randrange(1, 4)):
                run = p.start("pull", *words)
                time.sleep(rng.random() * 0.25)
                run.kill()
                killed += run.wait() == -signal.SIGKILL
                run.communicate()
            hub.pause = 0
            p.pulled(data, *words)
            left = list(p.cache.rglob("*.part*"))
            expect(f"seed {seed}: nothing is left", not left, left)
    print(f"{killed} runs were killed")
    expect("most runs were killed on the way", killed > 30, killed)


def test_killed_at_each_call():
    """Killed in front of every call that changes a file, in turn: the next run has the right bytes, and no part or record of one
    is left; temporary files of the run that was killed may be."""
    data, older = blob("m", 100_000), blob("n", 90_000)
    hub.add(REPO, {"m-Q4_K_M.gguf": data})
    url = hub.url + "/u.gguf"
    for name, words in [("repository", [REPO]), ("URL", [url]), ("newer", [url]), ("to", [REPO, "-o", "a.gguf", "--overwrite"])]:
        n = 0
        while True:
            n += 1
            p = Place()
            if name == "newer":
                hub.plain["/u.gguf"] = older
                p.good("pull", url)
            hub.plain["/u.gguf"] = data
            code, _, _ = p.run("pull", *words, env={"GR_TEST_KILL": str(n)})
            out, _ = p.good("pull", *words)
            path = p.dir / out.strip()
            left = [f.name for f in p.dir.rglob("*.part*") if ".tmp-" not in f.name]
            expect(f"{name}, call {n}: the bytes", path.read_bytes() == data, code)
            expect(f"{name}, call {n}: no part is left", not left, left)
            hub.forget()
            p.good("pull", *words)
            expect(f"{name}, call {n}: it is known as current", not any(r[3] in (200, 206) and r[4] > 50_000 for r in hub.log)
                   or name == "to", hub.log)
            if code != -signal.SIGKILL or n > 100:
                break
        expect(f"{name}: calls", 5 < n < 60, n)
        print(f"{name}: killed at {n - 1} calls")


QUICK = ["run_and_cache", "choice", "token", "resume_of_a_repository", "resume_of_a_url", "digests", "hostile_names", "two_at_once", "urls",
         "a_part_of_others", "a_folder_in_the_place_of_a_link", "pages_that_lead_astray"]


def main():
    tests = {name[5:]: fn for name, fn in (globals() | vars(faults)).items() if name.startswith("test_")}
    only = sys.argv[3:] or list(tests)
    only = QUICK if only == ["quick"] else [t for t in tests if t not in QUICK] if only == ["rest"] else only
    for place.at in only:
        hub.reset()
        start = time.monotonic()
        tests[place.at]()
        print(f"{place.at}: {time.monotonic() - start:.2f} s", flush=True)
    hub.close()
    if place.bad:
        sys.exit(f"{len(place.bad)} failed: {'; '.join(place.bad)}"[:2000])


main()
