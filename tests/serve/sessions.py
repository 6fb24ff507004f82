#!/usr/bin/env python3
"""Sessions of gpurun serve against texts of gpurun run: sessions.py GPURUN"""

import json
import pathlib
import socket
import subprocess
import sys
import tempfile
import threading
import time

import tiny
from served import LIMIT, Served

PROGRAM = sys.argv[1]
REF = ["--cpu-level", "ref", "-t", "2"]
PROMPT = "Once upon a time there was"
KEYS = {"a": "Bearer key-a", "b": "Bearer key-b"}


def text_of_run(prompt, n):
    done = subprocess.run([PROGRAM, "run", "-p", prompt, "-n", str(n), "--temp", "0", "--json", "--no-warmup", "-q", *REF],
                          capture_output=True, timeout=LIMIT, check=True)
    return json.loads(done.stdout)["text"]


def ids_of(prompt):
    return json.loads(subprocess.run([PROGRAM, "tokenize", "-p", prompt, "--ids", "-q"], capture_output=True, timeout=LIMIT, check=True).stdout)


def go_on(s, session, prompt, n, path="/v1/completions"):
    """The text behind a prompt, and the usage."""
    got = s.post(path, {"session": session, "prompt": prompt, "max_tokens": n, "temperature": 0, "n_predict": n, "ignore_eos": True})
    return (got["content"], got) if path == "/completion" else (got["choices"][0]["text"], got["usage"])


def length(s, session):
    """By GET, and as the scheduler counts it in a change of nothing."""
    status, view = s.get(f"/v1/sessions/{session}")
    counted = s.post(f"/v1/sessions/{session}/cut", {"lo": 0, "hi": 0})
    assert status == 200 and view == counted and view["id"] == session, (view, counted)
    return view["n_tokens"]


def opened(s):
    got = s.post("/v1/sessions", {})
    assert got["n_tokens"] == 0 and len(got["id"]) == 37, got
    return got["id"]


def closed(s, session):
    status, got = s.call("DELETE", f"/v1/sessions/{session}")
    assert status == 200 and got == {"id": session, "deleted": True}, got


def test_texts(s):
    """A text in parts, a fork and one that goes back are those of one prompt; a cell is computed once."""
    prompt = ids_of(PROMPT)
    whole = text_of_run(PROMPT, 24)
    one = opened(s)
    text, usage = go_on(s, one, PROMPT, 8)
    assert text == whole[:len(text)] and usage["prompt_tokens"] == len(prompt), (text, whole)
    assert length(s, one) == len(prompt) + 8
    fork = s.post(f"/v1/sessions/{one}/fork", {})
    assert fork["n_tokens"] == len(prompt) + 8 and fork["id"] != one
    more = ids_of(" and then the")[1:]
    ids = s.post("/completion", {"prompt": prompt, "n_predict": 8, "temperature": 0, "return_tokens": True, "ignore_eos": True})["tokens"]
    assert len(ids) == 8
    for session, path in ((fork["id"], "/v1/completions"), (one, "/completion")):
        want = s.post("/completion", {"prompt": prompt + ids + more, "n_predict": 9, "temperature": 0, "ignore_eos": True})["content"]
        text, usage = go_on(s, session, more, 9, path)
        assert text == want, (text, want)
        if "prompt_tokens_details" in usage:
            assert usage["prompt_tokens_details"]["cached_tokens"] == len(prompt) + 7, usage
        assert length(s, session) == len(prompt) + 8 + len(more) + 9
    assert s.post(f"/v1/sessions/{one}/back", {"n": len(prompt) - 1})["n_tokens"] == len(prompt) - 1
    assert go_on(s, one, prompt[-1:], 24)[0] == whole
    assert s.post(f"/v1/sessions/{one}/back", {"n": 0})["n_tokens"] == 0
    assert go_on(s, one, PROMPT, 24)[0] == whole  # with BOS again
    assert length(s, fork["id"]) == len(prompt) + 17 + len(more)
    closed(s, one)
    closed(s, fork["id"])


def test_text_with_words(s):
    """The prompt of a text has BOS only where the session is empty."""
    one = opened(s)
    go_on(s, one, PROMPT, 1)
    n = length(s, one)
    _, usage = go_on(s, one, " a cat", 1)
    assert usage["prompt_tokens"] == n + len(ids_of(" a cat")) - 1, (n, usage)
    closed(s, one)


def test_cut(s):
    one = opened(s)
    go_on(s, one, PROMPT, 20)
    n = length(s, one)
    assert s.post(f"/sessions/{one}/cut", {"lo": 2, "hi": 7})["n_tokens"] == n - 5
    text, usage = go_on(s, one, ids_of(" The")[1:], 6)
    assert text and usage["prompt_tokens"] == n - 5 + len(ids_of(" The")) - 1, usage
    for body, param in (({}, "lo"), ({"lo": 0}, "hi"), ({"lo": 3, "hi": 2}, "hi"), ({"lo": -1, "hi": 2}, "lo"), ({"lo": 0, "hi": 10 ** 6}, "hi"),
                        ({"lo": "0", "hi": 1}, "lo")):
        status, error = s.refused(f"/sessions/{one}/cut", body)
        assert status == 400 and error["param"] == param, (body, error)
    for n in (-1, 10 ** 6, None, "x"):
        status, error = s.refused(f"/sessions/{one}/back", {"n": n})
        assert status == 400 and error["param"] == "n", (n, error)
    closed(s, one)


def test_streams(s):
    one = opened(s)
    for path in ("/v1/completions", "/completion"):
        for _ in range(3):  # the next request may follow the last event at once
            events = s.stream(path, {"session": one, "prompt": "a", "max_tokens": 3, "n_predict": 3, "stream": True, "temperature": 0})
            assert len(events) > 2
    assert length(s, one)
    closed(s, one)


def test_refusals(s):
    one = opened(s)
    good = {"session": one, "prompt": PROMPT, "max_tokens": 1}
    for path in ("/v1/completions", "/completion"):
        for name, value in {"n": 2, "self_extend": {"n": 2}, "session": 7, "temperature": "x"}.items():
            status, error = s.refused(path, {**good, name: value})
            assert status == 400 and error["param"] == name, (name, error)
        assert s.refused(path, {**good, "prompt": ["a", "b"]})[1]["param"] == "prompt"
        status, error = s.refused(path, {**good, "session": "sess-0"})
        assert status == 404 and error["param"] == "session" and error["code"] == "session_not_found", error
    assert s.refused("/v1/completions", {**good, "echo": True, "logprobs": 1})[1]["param"] == "echo"
    assert s.refused("/v1/chat/completions", {"session": one, "messages": [{"role": "user", "content": "a"}]})[0] == 400
    go_on(s, one, PROMPT, 4)
    status, error = s.refused("/completion", {**good, "prompt": ids_of(PROMPT)[:1] * 250})
    assert status == 400 and error["code"] == "context_length_exceeded", error
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/fork"), ("POST", "/cut"), ("POST", "/back")):
        assert s.call(method, "/v1/sessions/sess-0" + path, {})[0] == 404, (method, path)
    closed(s, one)
    assert s.get(f"/v1/sessions/{one}")[0] == 404 and s.call("DELETE", f"/v1/sessions/{one}")[0] == 404


def test_too_many(s):
    all_of = []
    while True:
        status, got = s.call("POST", "/v1/sessions", {})
        if status != 200:
            break
        all_of.append(got["id"])
        go_on(s, got["id"], "a", 1)
    assert status == 429 and "close one" in got["error"]["message"] and len(all_of) == 4, (status, got, all_of)
    assert s.refused(f"/v1/sessions/{all_of[0]}/fork", {})[0] == 429
    closed(s, all_of.pop())
    all_of.append(s.post(f"/v1/sessions/{all_of[0]}/fork", {})["id"])
    for session in all_of:
        closed(s, session)


def test_busy(s):
    """One request at a time; a client that goes leaves the session usable."""
    one = opened(s)
    c = s.connect()
    c.request("POST", "/v1/completions", json.dumps({"session": one, "prompt": "a", "max_tokens": 200, "ignore_eos": True, "stream": True}))
    r = c.getresponse()
    assert r.readline().startswith(b"data: ")
    for method, path, body in (("POST", "/v1/completions", {"session": one, "prompt": "a"}), ("POST", f"/sessions/{one}/fork", {}),
                               ("POST", f"/sessions/{one}/cut", {"lo": 0, "hi": 0}), ("DELETE", f"/sessions/{one}", None)):
        status, got = s.call(method, path, body)
        assert status == 409 and got["error"]["code"] == "session_busy", (path, got)
    assert s.get(f"/sessions/{one}")[1]["n_tokens"] == 0
    r.close()
    c.close()
    end = time.monotonic() + LIMIT
    while s.call("POST", f"/sessions/{one}/cut", {"lo": 0, "hi": 0})[0] == 409 and time.monotonic() < end:
        time.sleep(0.01)
    assert length(s, one) > 1
    s.post(f"/sessions/{one}/back", {"n": 0})
    assert go_on(s, one, PROMPT, 8)[0] == text_of_run(PROMPT, 8)
    closed(s, one)


def test_many_at_once(s):
    """Clients that open, continue, fork and close, side by side."""
    want, wrong = text_of_run(PROMPT, 6), []

    def client():
        for _ in range(6):
            status, got = s.call("POST", "/v1/sessions", {})
            if status == 429:
                continue
            try:
                text = go_on(s, got["id"], PROMPT, 6)[0]
                wrong.extend([text] if text != want else [])
            finally:
                closed(s, got["id"])

    threads = [threading.Thread(target=client) for _ in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong, (wrong, want)
    test_too_many(s)


def owners():
    def ask(s, key, method, path, body=None):
        c = s.connect()
        c.request(method, path, json.dumps(body) if body is not None else None, {"Authorization": KEYS[key]})
        r = c.getresponse()
        answer = json.loads(r.read())
        c.close()
        return r.status, answer

    with Served(PROGRAM, [*REF, "--api-key", "key-a,key-b"]) as s:
        one = ask(s, "a", "POST", "/v1/sessions", {})[1]["id"]
        assert ask(s, "a", "GET", f"/v1/sessions/{one}")[0] == 200
        for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/fork"), ("POST", "/cut"), ("POST", "/back")):
            assert ask(s, "b", method, f"/v1/sessions/{one}{path}", {"n": 0, "lo": 0, "hi": 0})[0] == 404, path
        assert ask(s, "b", "POST", "/v1/completions", {"session": one, "prompt": "a"})[0] == 404
        assert ask(s, "a", "DELETE", f"/v1/sessions/{one}")[0] == 200


def gone():
    """A session whose client has gone before it had the answer is closed."""
    with Served(PROGRAM, [*REF, "-c", "1024", "-np", "2"]) as s:
        c = s.connect()
        c.request("POST", "/v1/completions", json.dumps({"prompt": [5] * 700, "max_tokens": 1}))  # a step of a second or more
        time.sleep(0.3)
        for _ in range(2):
            with socket.create_connection((s.host, s.port), LIMIT) as other:
                other.sendall(f"POST /v1/sessions HTTP/1.1\r\nHost: {s.host}:{s.port}\r\nContent-Length: 0\r\n\r\n".encode())
                time.sleep(0.1)
        c.getresponse().read()
        c.close()
        end = time.monotonic() + LIMIT
        for _ in range(2):
            while s.call("POST", "/v1/sessions", {})[0] == 429 and time.monotonic() < end:
                time.sleep(0.02)  # they are closed with the end of the step
        assert time.monotonic() < end


def kept_cells():
    """However long sessions are, another request of a whole context finds its cells."""
    with Served(PROGRAM, [*REF, "-c", "256", "-np", "3", "--kv-pool", "768"]) as s:
        sessions = [opened(s) for _ in range(3)]
        for i in range(2):
            s.post("/v1/completions", {"session": sessions[i], "prompt": [5 + i] * 200, "max_tokens": 4, "ignore_eos": True})
        status, error = s.refused("/v1/completions", {"session": sessions[2], "prompt": [7] * 200, "max_tokens": 4})
        assert status == 503 and "sessions" in error["message"] and "--kv-pool" in error["message"], (status, error)
        got = s.post("/v1/completions", {"session": sessions[2], "prompt": [7] * 90, "max_tokens": 100, "ignore_eos": True, "temperature": 0})
        assert got["choices"][0]["finish_reason"] == "length" and got["usage"]["completion_tokens"] < 20, got
        total = sum(length(s, one) for one in sessions)
        assert 505 <= total <= 513, total
        got = s.post("/v1/completions", {"prompt": [8] * 200, "max_tokens": 55, "ignore_eos": True})
        assert got["usage"]["completion_tokens"] == 55, got
        s.post(f"/sessions/{sessions[0]}/back", {"n": 100})
        fork = s.call("POST", f"/sessions/{sessions[0]}/fork", {})
        assert fork[0] == 429 and "close one" in fork[1]["error"]["message"], fork
        assert s.post("/v1/completions", {"session": sessions[2], "prompt": [7] * 90, "max_tokens": 4})["usage"]


def expiry():
    """A session that nothing uses closes by itself, and makes room for another one."""
    with Served(PROGRAM, [*REF, "-np", "1", "--session-ttl", "2"]) as s:
        one = opened(s)
        for _ in range(5):  # used
            time.sleep(0.5)
            go_on(s, one, "a", 1)
        assert s.call("POST", "/v1/sessions", {})[0] == 429
        time.sleep(2.2)
        two = opened(s)
        status, error = s.refused("/v1/completions", {"session": one, "prompt": "a"})
        assert status == 404 and error["code"] == "session_not_found", error
        closed(s, two)


def of_one_key():
    """One key has half of the sessions at most."""
    with Served(PROGRAM, [*REF, "-np", "3", "--api-key", "key-a,key-b"]) as s:
        def open_as(key):
            c = s.connect()
            c.request("POST", "/v1/sessions", "{}", {"Authorization": KEYS[key]})
            r = c.getresponse()
            answer = json.loads(r.read())
            c.close()
            return r.status, answer
        assert [open_as("a")[0] for _ in range(2)] == [200, 200]
        status, got = open_as("a")
        assert status == 429 and "one key" in got["error"]["message"], got
        assert open_as("b")[0] == 200


def learned_positions():
    """What the model cannot do is refused with the reason, and nothing changes."""
    with tempfile.TemporaryDirectory() as name:
        path = pathlib.Path(name) / "tiny.gguf"
        tiny.write_decoder(path)
        with Served(PROGRAM, ["-m", str(path), *REF]) as s:
            for stream in (False, True):
                status, error = s.refused("/completion", {"prompt": "a", "n_predict": 1, "stream": stream, "self_extend": {"n": 2, "w": 8}})
                assert status == 400 and error["param"] == "self_extend" and "positions of a gpt2 model" in error["message"], error
            one = opened(s)
            text, _ = go_on(s, one, "abc", 6, "/completion")
            n = length(s, one)
            status, error = s.refused(f"/sessions/{one}/cut", {"lo": 1, "hi": 2})
            assert status == 400 and "positions of a gpt2 model" in error["message"] and length(s, one) == n, (error, n)
            fork = s.post(f"/sessions/{one}/fork", {})["id"]
            assert s.post(f"/sessions/{fork}/back", {"n": 0})["n_tokens"] == 0
            assert go_on(s, fork, "abc", 6, "/completion")[0] == text and length(s, one) == n


def pinned():
    """A session keeps the beginning of other texts in the cache, chats too, however many texts come in between; without one it goes."""
    messages = [{"role": "system", "content": "You tell stories about a fox, a lake and the moon to a child who wants to sleep. " * 2}]
    for kept in (True, False):
        with Served(PROGRAM, [*REF, "-np", "2", "-c", "256", "--kv-pool", "768", "--chat-template", "chatml"]) as s:
            prompt = s.post("/apply-template", {"messages": messages, "add_generation_prompt": False})["prompt"]
            n = len(s.post("/tokenize", {"content": prompt, "add_special": True, "parse_special": True})["tokens"])
            if kept:
                one = opened(s)
                s.post("/completion", {"session": one, "prompt": prompt, "n_predict": 0})
                assert length(s, one) == n, (length(s, one), n)
            for i in range(8):
                s.post("/completion", {"prompt": f"{i} " + "other words " * 25, "n_predict": 1})
            usage = s.post("/v1/chat/completions", {"messages": [*messages, {"role": "user", "content": "Begin"}], "max_tokens": 4})["usage"]
            cached = usage["prompt_tokens_details"]["cached_tokens"]
            assert cached >= n - 1 if kept else cached <= 1, (kept, cached, n)


with Served(PROGRAM, REF) as server:
    for name, test in sorted(globals().items()):
        if name.startswith("test_"):
            begin = time.monotonic()
            test(server)
            print(f"{name[5:]}: {time.monotonic() - begin:.2f} s", flush=True)
    opened(server)  # and left open
assert server.code == 0, (server.code, server.lines[-5:])
owners()
learned_positions()
kept_cells()
pinned()
expiry()
of_one_key()
gone()
