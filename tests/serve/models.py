#!/usr/bin/env python3
"""Several models of a folder in one server (--models-dir), against servers of one model each: models.py GPURUN"""

import json
import os
import pathlib
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time

import tiny
from served import LIMIT, Served

PROGRAM = sys.argv[1]
DEFAULT = pathlib.Path(__file__).parents[2] / "tools/default-model.gguf"
FLAGS = ["--cpu-level", "ref", "-t", "1", "-np", "2"]
LONG = {"prompt": "Once", "max_tokens": 100000, "ignore_eos": True, "stream": True}  # up to the context's length


def make_folder(folder):
    """alpha, beta and deep (in a folder) are models; images, drafts and second parts are none; broken is damaged."""
    shutil.copy(DEFAULT, folder / "alpha.gguf")
    tiny.write_decoder(folder / "beta.gguf")
    (folder / "deep").mkdir()
    tiny.write_decoder(folder / "deep/file.gguf", seed=8)
    (folder / "deep/inner").mkdir()
    for name in ("mmproj-x.gguf", "mtp-x.gguf", ".hidden.gguf", "part-00002-of-00002.gguf", "notes.txt", "deep/inner/y.gguf"):
        (folder / name).write_bytes(b"x")
    (folder / "broken.gguf").write_bytes(DEFAULT.read_bytes()[:100000])


def states(s):
    status, answer = s.get("/v1/models")
    assert status == 200 and answer["object"] == "list", answer
    return {m["id"]: m["status"]["value"] for m in answer["data"]}


def ask(s, model, path="/v1/completions", **more):
    answer = s.post(path, {"model": model, "prompt": "abc", "max_tokens": 8, "temperature": 0, **more})
    assert answer["model"] == model, answer
    return answer["choices"][0]["text"]


def texts_of_single_servers(folder):
    texts = {}
    for name, file in (("alpha", "alpha.gguf"), ("beta", "beta.gguf"), ("deep", "deep/file.gguf")):
        with Served(PROGRAM, [*FLAGS, str(folder / file)]) as s:
            texts[name] = ask(s, name)
    return texts


class Asking(threading.Thread):
    """A request in a thread of its own: status and answer."""

    def __init__(self, s, path, body):
        super().__init__(daemon=True)
        self.s, self.path, self.body, self.status = s, path, body, None
        self.start()

    def run(self):
        self.status, self.answer = self.s.call("POST", self.path, self.body)

    def wait(self):
        self.join(LIMIT)
        assert self.status is not None, (self.path, self.body, "no answer")
        return self.status, self.answer


class Streaming:
    """A long answer, whose client reads its beginning: the model has a request under way."""

    def __init__(self, s, model):
        self.c = s.connect()
        self.c.request("POST", "/v1/completions", json.dumps({"model": model, **LONG}))
        self.r = self.c.getresponse()
        assert self.r.status == 200 and self.r.read(6) == b"data: "

    def close(self):
        self.r.close()
        self.c.close()


def wait_until(what, seconds=LIMIT):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it does not come true"
        time.sleep(0.02)


def test_list_and_load(folder, texts):
    with Served(PROGRAM, [*FLAGS, "--models-dir", str(folder), "--slots", "--props", "--metrics"]) as s:
        assert states(s) == dict.fromkeys(("alpha", "beta", "broken", "deep"), "unloaded"), states(s)
        status, error = s.refused("/v1/completions", {"prompt": "abc"})
        assert status == 400 and error["param"] == "model", error
        for model in ("gamma", "../alpha", "deep/file", "alpha.gguf", "deep/inner/y", str(folder / "alpha")):
            status, error = s.refused("/v1/completions", {"model": model, "prompt": "abc"})
            assert (status, error["code"], error["param"]) == (404, "model_not_found", "model"), (model, error)
        assert s.refused("/v1/completions", {"model": 1, "prompt": "abc"})[0] == 400

        assert ask(s, "beta") == texts["beta"]
        assert states(s)["beta"] == "loaded" and states(s)["alpha"] == "unloaded", states(s)
        assert s.post("/v1/completions", {"prompt": "abc", "max_tokens": 8, "temperature": 0})["choices"][0]["text"] == texts["beta"]
        assert ask(s, "alpha") == texts["alpha"] and ask(s, "deep") == texts["deep"] and ask(s, "beta") == texts["beta"]
        assert s.refused("/v1/completions", {"prompt": "abc"})[0] == 400  # there are three now
        asking = [Asking(s, "/v1/completions", {"model": m, "prompt": "abc", "max_tokens": 8, "temperature": 0}) for m in list(texts) * 6]
        for a in asking:
            status, answer = a.wait()
            assert status == 200 and answer["choices"][0]["text"] == texts[a.body["model"]], answer

        damaged(s)
        by_query(s)
        for_ollama(s)
        by_tag(s, folder, texts)
        by_keep_alive(s, texts)
        appears_later(s, folder, texts)
        by_hand(s, texts)
    assert s.code == 0, s.code


def damaged(s):
    """A damaged file is refused with its reason, each time anew, and by itself."""
    for _ in range(2):
        status, error = s.refused("/v1/completions", {"model": "broken", "prompt": "abc"})
        assert (status, error["code"]) == (500, "model_load_failed") and "broken.gguf" in error["message"], error
    status, model = s.get("/v1/models/broken")
    assert status == 200 and model["status"]["value"] == "failed" and "broken.gguf" in model["status"]["message"], model
    assert s.get("/v1/models/none")[0] == 404
    assert s.get("/health") == (200, {"status": "ok"})


def by_query(s):
    """Routes about a model, sessions too."""
    assert s.get("/props?model=beta")[1]["model_alias"] == "beta" and s.get("/props")[0] == 400
    assert s.get("/slots?model=beta") == (200, []) and s.get("/cache?model=alpha")[1]["n_cells"] > 0
    assert "gpurun:requests_total" in s.get("/metrics?model=beta")[1]
    status, answer = s.get("/props?model=broken")
    assert status == 400 and answer["error"]["code"] == "model_not_loaded", answer
    session = s.post("/v1/sessions?model=alpha", {})["id"]
    assert s.post("/v1/completions", {"model": "alpha", "session": session, "prompt": "abc", "max_tokens": 2})["usage"]["prompt_tokens"] > 0
    assert s.get(f"/v1/sessions/{session}?model=alpha")[0] == 200 and s.get(f"/v1/sessions/{session}?model=beta")[0] == 404
    assert s.call("DELETE", f"/v1/sessions/{session}?model=alpha")[0] == 200
    a, b = (s.post("/tokenize", {"model": m, "content": "abc"}) for m in ("alpha", "beta"))
    assert a != b, (a, b)


def for_ollama(s):
    assert sorted(m["name"] for m in s.get("/api/tags")[1]["models"]) == ["alpha", "beta", "broken", "deep"]
    assert sorted(m["name"] for m in s.get("/api/ps")[1]["models"]) == ["alpha", "beta", "deep"]


def by_tag(s, folder, texts):
    """Ollama's names with a tag; a file whose name has it comes first."""
    for path in "/v1/completions", "/completion", "/api/generate":
        answer = s.post(path, {"model": "beta:latest", "prompt": "abc", "max_tokens": 8, "temperature": 0, "stream": False, "raw": True})
        assert answer["model"] == "beta:latest" and texts["beta"] in (answer.get("response"), answer.get("content"), answer.get("choices", [{}])[0].get("text")), answer
    assert ask(s, "alpha:8b-q4_0") == texts["alpha"]
    for model in "gamma:latest", ":latest", ":", "beta:a:b", "bet:a", "beta/x:a":
        assert s.refused("/v1/completions", {"model": model, "prompt": "abc"})[0] == 404, model
    (folder / "beta:big.gguf").symlink_to(folder / "deep/file.gguf")
    wait_until(lambda: "beta:big" in states(s))
    assert ask(s, "beta:big") == texts["deep"] and ask(s, "beta:small") == texts["beta"]
    assert s.post("/models/unload", {"model": "beta:big"}) == {"success": True}
    (folder / "beta:big.gguf").unlink()
    wait_until(lambda: "beta:big" not in states(s))


def by_keep_alive(s, texts):
    """Ollama's way to unload a model, which is not loaded for that."""
    for path, empty, rest, kept in (("/api/generate", {}, {"response": ""}, 0), ("/api/chat", {"messages": []}, {"message": {"role": "assistant", "content": ""}}, "0s"),
                                    ("/api/generate?model=deep", {"prompt": ""}, {"response": ""}, 0)):
        assert ask(s, "deep") == texts["deep"]
        for _ in range(2):
            got = s.post(path, {**({} if "?" in path else {"model": "deep:latest"}), **empty, "keep_alive": kept})
            assert got.pop("created_at") and got == {"model": "deep" if "?" in path else "deep:latest", "done": True, "done_reason": "unload", **rest}, got
            assert states(s)["deep"] == "unloaded", states(s)
    status, answer = s.call("POST", "/api/generate", {"model": "none", "keep_alive": 0})
    assert status == 404 and isinstance(answer["error"], str), answer
    assert s.post("/api/generate", {"model": "deep", "keep_alive": "5m"})["done_reason"] == "load" and states(s)["deep"] == "loaded"
    under_way = Streaming(s, "alpha")
    unload = Asking(s, "/api/chat", {"model": "alpha", "keep_alive": 0})
    time.sleep(0.3)
    assert unload.status is None and states(s)["alpha"] == "loaded"
    under_way.close()
    assert unload.wait()[1]["done_reason"] == "unload" and states(s)["alpha"] == "unloaded"
    assert ask(s, "alpha") == texts["alpha"]


def appears_later(s, folder, texts):
    (folder / "later.gguf").symlink_to(folder / "beta.gguf")
    assert ask(s, "later") == texts["beta"]
    assert s.post("/models/unload", {"model": "later"}) == {"success": True}
    (folder / "later.gguf").unlink()
    wait_until(lambda: "later" not in states(s))
    assert s.refused("/v1/completions", {"model": "later", "prompt": "abc"})[0] == 404


def by_hand(s, texts):
    """An unload waits for the request that is under way; a new request waits for both, and loads the model again."""
    assert s.post("/models/load", {"model": "alpha"}) == {"success": True}
    assert s.refused("/models/load", {})[0] == 400 and s.refused("/models/load", {"model": "none"})[0] == 404
    assert s.refused("/models/load", {"model": "broken"})[0] == 500
    under_way = Streaming(s, "alpha")
    unload = Asking(s, "/models/unload", {"model": "alpha"})
    time.sleep(0.3)
    assert unload.status is None and states(s)["alpha"] == "loaded" and len(s.get("/slots?model=alpha")[1]) == 1
    after = Asking(s, "/v1/completions", {"model": "alpha", "prompt": "abc", "max_tokens": 8, "temperature": 0})
    assert ask(s, "beta") == texts["beta"]
    time.sleep(0.3)
    assert unload.status is None and after.status is None
    under_way.close()
    assert unload.wait() == (200, {"success": True})
    assert after.wait()[1]["choices"][0]["text"] == texts["alpha"]
    for _ in range(2):
        assert s.post("/models/unload", {"model": "beta"}) == {"success": True}
    assert states(s)["beta"] == "unloaded" and states(s)["alpha"] == "loaded"


def test_eviction(folder, texts):
    words = [*FLAGS, "-c", "4000", "--models-dir", str(folder), "--models-max", "1", "--models-wait", "2"]
    with Served(PROGRAM, words) as s:
        for model in ("alpha", "beta", "alpha", "deep"):
            assert ask(s, model) == texts[model]
            assert [m for m, state in states(s).items() if state == "loaded"] == [model], states(s)
        under_way = Streaming(s, "alpha")
        start = time.monotonic()
        c = s.connect()
        c.request("POST", "/v1/completions", json.dumps({"model": "beta", "prompt": "abc"}))
        r = c.getresponse()
        error = json.loads(r.read())["error"]
        assert r.status == 503 and r.headers["Retry-After"] and error["code"] == "model_busy", (r.status, error)
        assert time.monotonic() - start > 1.5
        left = s.connect()  # a client that leaves while it waits
        left.request("POST", "/v1/completions", json.dumps({"model": "beta", "prompt": "abc"}))
        time.sleep(0.2)
        left.close()
        waits = Asking(s, "/v1/completions", {"model": "deep", "prompt": "abc", "max_tokens": 8, "temperature": 0})
        time.sleep(0.2)
        under_way.close()
        assert waits.wait()[1]["choices"][0]["text"] == texts["deep"]
        assert states(s)["beta"] == "unloaded", states(s)

    words[words.index("--models-wait") + 1] = str(LIMIT)
    with Served(PROGRAM, words) as s:  # all at once, each waits for its turn
        asking = [Asking(s, "/v1/completions", {"model": m, "prompt": "abc", "max_tokens": 8, "temperature": 0})
                  for m in (*texts, "broken") * 4]
        for a in asking:
            status, answer = a.wait()
            model = a.body["model"]
            assert status == (500 if model == "broken" else 200), answer
            assert model == "broken" or answer["choices"][0]["text"] == texts[model], answer
    assert s.code == 0, s.code


def test_room(folder, texts):
    """A model whose cache has no room beside that of another one."""
    pool = 1_000_000  # cells; 1.5 GB, which are reserved and not used
    (folder / "twin.gguf").symlink_to(folder / "alpha.gguf")
    with Served(PROGRAM, [*FLAGS, "--models-dir", str(folder), "-c", "256", "--kv-pool", str(pool), "--device", "none"]) as s:
        size = int(pathlib.Path(f"/proc/{s.process.pid}/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        if size > 1 << 36:
            print("test_room: not with a sanitizer, which reserves more than can be limited")
        else:
            resource.prlimit(s.process.pid, resource.RLIMIT_AS, (size + 2_300_000_000, resource.RLIM_INFINITY))
            for model in ("alpha", "twin", "alpha"):
                assert ask(s, model) == texts["alpha"]
                assert [m for m, state in states(s).items() if state == "loaded"] == [model], states(s)
            asking = [Asking(s, "/v1/completions", {"model": m, "prompt": "abc", "max_tokens": 8, "temperature": 0}) for m in ("alpha", "twin") * 3]
            for a in asking:
                status, answer = a.wait()
                assert status == 200 and answer["choices"][0]["text"] == texts["alpha"], answer
    (folder / "twin.gguf").unlink()
    assert s.code == 0, s.code


def test_first_model(folder, texts):
    """The model of -m answers requests without a name, stays, and does not count."""
    with Served(PROGRAM, [*FLAGS, "-m", str(folder / "alpha.gguf"), "--models-dir", str(folder), "--models-max", "1"]) as s:
        for model in ("beta", "deep"):
            assert ask(s, model) == texts[model]
        assert states(s) == {"alpha": "loaded", "beta": "unloaded", "broken": "unloaded", "deep": "loaded"}, states(s)
        assert s.post("/v1/completions", {"prompt": "abc", "max_tokens": 8, "temperature": 0})["choices"][0]["text"] == texts["alpha"]
        assert s.refused("/models/unload", {"model": "alpha"})[0] == 400 and ask(s, "alpha") == texts["alpha"]
        assert s.post("/api/generate", {"model": "alpha", "keep_alive": 0})["done_reason"] == "unload" and states(s)["alpha"] == "loaded"
    assert s.code == 0, s.code


def test_leaving(folder, texts):
    """Clients that leave at any moment of a load, and loads that go on when the server stops."""
    with Served(PROGRAM, [*FLAGS, "--models-dir", str(folder), "--models-max", "1"]) as s:
        for i in range(12):
            c = s.connect()
            c.request("POST", "/v1/completions", json.dumps({"model": ("alpha", "deep")[i % 2], "prompt": "abc"}))
            time.sleep(0.01 * i)
            c.close()
        assert ask(s, "beta") == texts["beta"]
        wait_until(lambda: states(s) == {"alpha": "unloaded", "beta": "loaded", "broken": "unloaded", "deep": "unloaded"})
    assert s.code == 0, s.code
    for i in range(4):
        with Served(PROGRAM, [*FLAGS, "--models-dir", str(folder), "--models-max", "1", "--drain", "1"]) as s:
            asking = []
            for model in ("alpha", "beta", "deep"):
                c = s.connect()
                c.request("POST", "/v1/completions", json.dumps({"model": model, "prompt": "abc", "max_tokens": 2}))
                asking.append(c)
            time.sleep(0.03 * i)
            os.kill(s.process.pid, signal.SIGTERM)
            for c in asking:
                try:
                    assert c.getresponse().status in (200, 503)
                except OSError:
                    pass  # it had not been read when the server closed its socket
                c.close()
        assert s.code in (0, 128 + signal.SIGTERM), s.code


def test_cancelled(folder, texts):
    """A load that no request waits for ends: its clients have left, or the server stops."""
    slow, said = folder / "slow", "slow is not loaded: no request waits for it any more"
    slow.mkdir()
    tiny.write_slow_decoder(slow / "slow.gguf")
    shutil.copy(folder / "beta.gguf", slow)

    def ask_slow():
        c = s.connect()
        c.request("POST", "/v1/completions", json.dumps({"model": "slow", "prompt": "abc"}))
        wait_until(lambda: states(s)["slow"] == "loading")
        return c

    with Served(PROGRAM, [*FLAGS, "--warmup", "--models-dir", str(slow)]) as s:
        clients = [ask_slow(), ask_slow()]
        clients[0].close()
        time.sleep(0.5)
        assert states(s)["slow"] == "loading"  # one still waits
        clients[1].close()
        begun = time.monotonic()
        wait_until(lambda: states(s)["slow"] == "unloaded")
        print(f"a load ends within {time.monotonic() - begun:.2f} s")
        assert ask(s, "beta") == texts["beta"]
        ask_slow().close()
        last = ask_slow()  # behind the one that ends, or with it
        time.sleep(0.5)
        assert states(s)["slow"] == "loading"
        os.kill(s.process.pid, signal.SIGTERM)
        begun = time.monotonic()
        assert last.getresponse().status == 503
        s.process.wait(LIMIT)
        print(f"the server ends within {time.monotonic() - begun:.2f} s")
    assert s.code == 0 and len([line for line in s.lines if said in line]) >= 2 and not [line for line in s.lines if "error" in line], (s.code, s.lines[-9:])
    shutil.rmtree(slow)


def test_refused(folder):
    there = ["--models-dir", str(folder)]
    for words, error in ((["--models-dir", str(folder / "none")], "--models-dir"), (["--models-dir", str(folder / "alpha.gguf")], "--models-dir"),
                         ([*there, "--lora-scaled", "x.gguf"], "--lora-scaled"), ([*there, "--slot-save-path", str(folder / "alpha.gguf")], "--slot-save-path")):
        try:
            with Served(PROGRAM, words):
                pass
        except SystemExit as e:
            assert str(e).count(f"error: {error}") == 1, e
        else:
            raise AssertionError(words)


with tempfile.TemporaryDirectory() as name:
    where = pathlib.Path(name)
    make_folder(where)
    expected = texts_of_single_servers(where)
    assert len(set(expected.values())) == 3, expected
    for test in (test_list_and_load, test_eviction, test_room, test_first_model, test_leaving, test_cancelled):
        begun = time.monotonic()
        test(where, expected)
        print(f"{test.__name__}: {time.monotonic() - begun:.1f} s")
    test_refused(where)
