#!/usr/bin/env python3
"""Vectors of gpurun serve against those of gpurun embed: embeddings.py GPURUN"""

import base64
import json
import math
import pathlib
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

import tiny
from served import LIMIT, Served

PROGRAM = sys.argv[1]
REF = ["--cpu-level", "ref", "-t", "2"]
TEXTS = ["once upon a time", "abc", "the cat sat on the mat, and a dog sat beside it", "x", "Grüße, 世界"]
PAIRS = ["a cat is an animal", "the sun", "cats", "of all animals a cat is the one that", "zzz"]


def embed(model, texts, *words):
    """What gpurun embed says of the texts."""
    done = subprocess.run([PROGRAM, "embed", *model, "-p", "\n".join(texts), "--json", "-q", *REF, *words], capture_output=True, timeout=LIMIT)
    assert done.returncode == 0, (words, done.stderr)
    return json.loads(done.stdout)


def vectors_of(model, texts, *words):
    return [item["embedding"] for item in embed(model, texts, *words)["data"]]


def ids_of(model, text):
    done = subprocess.run([PROGRAM, "tokenize", *model, "-p", text, "--ids", "-q"], capture_output=True, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def ask(s, texts, **fields):
    """The vectors of an answer, whose form is checked."""
    got = s.post("/v1/embeddings", {"input": texts, "model": "any", **fields})
    assert got["object"] == "list" and got["model"] == "any"
    assert [item["index"] for item in got["data"]] == list(range(len(got["data"])))
    assert all(item["object"] == "embedding" for item in got["data"])
    return [item["embedding"] for item in got["data"]]


def floats(text):
    raw = base64.b64decode(text, validate=True)
    return list(struct.unpack(f"<{len(raw) // 4}f", raw))


def rounded(x):
    """The f32 that a number with nine digits stands for."""
    return struct.unpack("<f", struct.pack("<f", x))[0]


# ---- an encoder, and a model that generates texts too ----

def check_vectors(s, model, words):
    want = vectors_of(model, TEXTS, *words)
    assert ask(s, TEXTS) == want
    assert [ask(s, t)[0] for t in TEXTS] == want
    assert [floats(v) for v in ask(s, TEXTS, encoding_format="base64")] == [[rounded(x) for x in v] for v in want]
    assert ask(s, TEXTS, encoding_format="float") == want
    ids = [ids_of(model, t) for t in TEXTS]
    assert ask(s, ids) == want and ask(s, ids[1]) == want[1:2]
    assert ask(s, [ids[0], TEXTS[1]]) == want[:2]
    usage = s.post("/embeddings", {"input": TEXTS})["usage"]
    n = sum(len(i) for i in ids)
    assert usage == {"prompt_tokens": n, "total_tokens": n}
    assert all(math.isclose(sum(x * x for x in v), 1, rel_tol=1e-5) for v in want)


def check_ollama(s, model, words):
    want = vectors_of(model, TEXTS, *words)
    got = s.post("/api/embed", {"model": "any", "input": TEXTS, "options": {"num_ctx": 9}})
    assert got["embeddings"] == want and got["prompt_eval_count"] == embed(model, TEXTS, *words)["usage"]["prompt_tokens"]
    assert s.post("/api/embed", {"model": "any", "input": TEXTS[0]})["embeddings"] == want[:1]
    assert "embedding" in s.post("/api/show", {"model": "any"})["capabilities"]


def check_many(s, model, words, n):
    """Requests of several clients share steps, and each has what is its own."""
    texts = [f"{chr(97 + i % 26) * (1 + i % 9)} {TEXTS[i % len(TEXTS)]} {i}" for i in range(n)]
    want = vectors_of(model, texts, *words)
    got = [None] * 6

    def client(k):
        got[k] = ask(s, texts[k::6]) if k % 2 else [ask(s, t)[0] for t in texts[k::6]]

    threads = [threading.Thread(target=client, args=(k,)) for k in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(LIMIT)
    for k in range(6):
        assert got[k] == want[k::6], k


def check_refused(s, n_vocab, n_most, n_embd):
    for wrong in (None, "", [], 7, True, {}, [1, "x"], ["x", 7], ["x", None], [[]], [[1], "x", [n_vocab]], [-1], [n_vocab], [1.5], [["x"]],
                  ["x"] * 2049):
        status, error = s.refused("/v1/embeddings", {"input": wrong})
        assert status == 400 and error["param"] == "input" and error["type"] == "invalid_request_error", (str(wrong)[:40], error)
    for field, wrong in (("encoding_format", "int8"), ("encoding_format", 7), ("dimensions", "x"), ("dimensions", 0), ("dimensions", 1.5),
                         ("dimensions", n_embd - 1), ("dimensions", n_embd + 1), ("model", 7)):
        status, error = s.refused("/v1/embeddings", {"input": "x", field: wrong})
        assert status == 400 and error["param"] == field, (field, wrong, error)
    ask(s, "x", dimensions=n_embd, encoding_format=None, user="somebody")
    ask(s, [[1] * n_most])
    for long, name in (([1] * (n_most + 1), "input"), (["x", [1] * (n_most + 1)], "input[1]")):
        status, error = s.refused("/v1/embeddings", {"input": long})
        assert status == 400 and f"{name} has {n_most + 1} tokens" in error["message"] and str(n_most) in error["message"], error
        assert error["code"] == "context_length_exceeded" and error["param"] == "input"
    status, error = s.refused("/v1/rerank", {"query": "x", "documents": ["y"]})
    assert status == 501, error


def test_encoder(encoder):
    model = ["-m", str(encoder)]
    with Served(PROGRAM, [*model, *REF, "--metrics", "--slots"]) as s:
        check_vectors(s, model, [])
        check_ollama(s, model, [])
        check_many(s, model, [], 150)
        check_refused(s, tiny.N_VOCAB, tiny.N_CTX, tiny.N_EMBD)
        blank = ["abc", "", " ", "z"]
        assert ask(s, blank) == vectors_of(model, blank) and ask(s, [""]) == ask(s, blank)[1:2]
        for path, body in (("/v1/completions", {"prompt": "x"}), ("/completion", {"prompt": "x"}), ("/infill", {}), ("/v1/responses", {"input": "x"}),
                           ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}), ("/api/generate", {"prompt": "x"}),
                           ("/api/chat", {"messages": [{"role": "user", "content": "x"}]})):
            assert s.refused(path, body)[0] == 501, path
        assert s.refused("/v1/sessions", {})[0] == 501 and s.get("/v1/sessions/sess-0")[0] == 404
        assert s.refused("/lora-adapters", [])[0] == 501
        assert s.get("/slots") == (200, []) and s.get("/cache")[1]["n_cells"] == 0
        assert s.post("/api/show", {"model": "m"})["capabilities"] == ["embedding"]
        long = "a" * 3 * tiny.N_CTX
        cut = s.post("/api/embed", {"input": long})
        assert cut["prompt_eval_count"] == tiny.N_CTX and cut["embeddings"] == ask(s, "a" * (tiny.N_CTX - 1))
        assert s.refused("/api/embed", {"input": long, "truncate": False})[0] == 400
        check_metrics(s)
    assert s.code == 0 and any("vectors of 32 numbers, pooling mean" in line for line in s.lines), s.lines


def check_metrics(s):
    def read():
        text = s.get("/metrics")[1]
        return {line.split()[0]: float(line.split()[1]) for line in text.splitlines() if not line.startswith("#")}

    before = read()
    n = s.post("/v1/embeddings", {"input": TEXTS})["usage"]["total_tokens"]
    after = read()
    for name, more in (("requests_total{finish_reason=\"stop\"}", 1), ("prompt_tokens_total", n), ("steps_total", 1), ("e2e_seconds_count", 1)):
        assert after[f"gpurun:{name}"] == before[f"gpurun:{name}"] + more, name
    assert after["gpurun:requests_running"] == after["gpurun:requests_waiting"] == 0


def test_causal():
    """The built-in model, which generates meanwhile."""
    words = ["--pooling", "last"]
    with Served(PROGRAM, [*REF, *words, "--embeddings", "-c", "300", "-b", "64"]) as s:
        body = {"prompt": "Once upon a time", "max_tokens": 30, "temperature": 0}
        alone = s.post("/v1/completions", body)["choices"]
        beside = []
        t = threading.Thread(target=lambda: beside.append(s.post("/v1/completions", body)["choices"]))
        t.start()
        check_vectors(s, [], words)
        check_many(s, [], words, 12)
        t.join(LIMIT)
        assert beside == [alone]
        n_embd = len(ask(s, "x")[0])
        check_refused(s, 1 << 30, 300, n_embd)
        assert set(s.post("/api/show", {"model": "m"})["capabilities"]) >= {"completion", "embedding"}
    assert s.code == 0


def test_without_flag():
    with Served(PROGRAM, REF) as s:
        for path in ("/v1/embeddings", "/api/embed", "/rerank"):
            status, error = s.refused(path, {"input": "x"})
            assert status == 501 and "--embeddings" in (error if path == "/api/embed" else error["message"]), error


# ---- other lengths ----

def test_lengths(encoder):
    model = ["-m", str(encoder)]
    for words in (["--embd-normalize", "1", "--matryoshka", "--pooling", "cls"], ["--embd-normalize", "-1", "--matryoshka"]):
        plain = [w for w in words if w != "--matryoshka"]
        with Served(PROGRAM, [*model, *REF, *words]) as s:
            assert ask(s, TEXTS) == vectors_of(model, TEXTS, *plain)
            raw = vectors_of(model, TEXTS, *plain, "--embd-normalize", "-1")
            for short, long in zip(ask(s, TEXTS, dimensions=8), raw):
                length = sum(abs(x) for x in long[:8]) if words[1] == "1" else 1
                assert len(short) == 8 and all(math.isclose(a, b / length, rel_tol=1e-6) for a, b in zip(short, long))


# ---- ranks ----

def test_rerank(encoder):
    model, query = ["-m", str(encoder)], "what is a cat"
    want = embed(model, [f"{query}\t{p}" for p in PAIRS], "--pooling", "rank")
    score = [item["scores"][want["labels"].index("yes")] for item in want["data"]]
    order = sorted(range(len(PAIRS)), key=lambda i: -score[i])
    with Served(PROGRAM, [*model, *REF, "--pooling", "rank"]) as s:
        body = {"query": query, "documents": PAIRS, "model": "any"}
        got = s.post("/v1/rerank", body)
        assert got["results"] == [{"index": i, "relevance_score": score[i]} for i in order], (got, score)
        assert got["usage"] == want["usage"] and got["model"] == "any" and got["object"] == "list"
        top = s.post("/rerank", {**body, "documents": [{"text": p} for p in PAIRS], "top_n": 2, "return_documents": True})["results"]
        assert top == [{**r, "document": {"text": PAIRS[r["index"]]}} for r in got["results"][:2]]
        assert s.post("/rerank", {**body, "documents": PAIRS[:1] * 3, "top_n": 9})["results"] == [
            {"index": i, "relevance_score": score[0]} for i in range(3)]
        for field, wrong in (("query", None), ("query", ""), ("query", 7), ("query", ["x"]), ("documents", None), ("documents", []),
                             ("documents", "x"), ("documents", ["x", 7]), ("documents", [{"title": "x"}]), ("documents", ["x"] * 2049),
                             ("documents", ["a" * tiny.N_CTX]), ("top_n", 0), ("top_n", "x"), ("return_documents", 1)):
            status, error = s.refused("/v1/rerank", {**body, field: wrong})
            assert status == 400 and error["param"] == field, (field, str(wrong)[:40], error)
        assert s.refused("/v1/embeddings", {"input": "x"})[0] == 501
    assert s.code == 0


# ---- clients that go, queues that are full, servers that do not start ----

def send(s, body):
    c = socket.create_connection((s.host, s.port), LIMIT)
    c.sendall(f"POST /v1/embeddings HTTP/1.1\r\nHost: {s.host}:{s.port}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
    return c


def until(condition, message):
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end, message
        time.sleep(0.01)


def leaves(s, client, left):
    """A client that hangs up: its request, of 1,500 steps, ends after few more."""
    before = s.metric("gpurun:steps_total")
    client.close()
    until(lambda: s.requests() == left, "the request of a client that has gone is still there")
    more = s.metric("gpurun:steps_total") - before
    assert more < 100, f"{more} steps after a client has gone"


def test_gone():
    """A client that hangs up frees its place, and one that comes behind a long request does not wait for its end."""
    long = json.dumps({"input": [[1 + i % 200] * 60 for i in range(1500)]})
    with Served(PROGRAM, [*REF, "--pooling", "mean", "--embeddings", "-c", "256", "-b", "64", "--queue", "2", "--metrics"]) as s:
        first, second = send(s, long), send(s, long)
        until(lambda: s.requests() == 2, "the requests do not begin")
        status, error = s.refused("/v1/embeddings", {"input": "x"})
        assert status == 429 and error["type"] == "rate_limit_error", error
        leaves(s, second, 1)
        ask(s, "short")
        assert s.requests() == 1, "the long request ended first"
        leaves(s, first, 0)
    assert s.code == 0


def test_many_vectors():
    """The vectors of all requests have a bound; one request may have more."""
    long = json.dumps({"input": [[1 + i % 200] * 60 for i in range(1500)]})
    with Served(PROGRAM, [*REF, "--pooling", "mean", "--embeddings", "-c", "256", "-b", "64", "--metrics", "--max-answer", "100000"]) as s:
        first = send(s, long)
        until(lambda: s.requests() == 1, "the request does not begin")
        status, error = s.refused("/v1/embeddings", {"input": "x"})
        assert status == 429 and error["type"] == "rate_limit_error", error
        leaves(s, first, 0)
        s.post("/v1/embeddings", {"input": "x"})
    assert s.code == 0


def test_stop():
    """A server that is stopped answers those that wait."""
    with Served(PROGRAM, [*REF, "--pooling", "mean", "--embeddings", "-c", "256", "-b", "64", "--drain", "0", "--metrics"]) as s:
        c = send(s, json.dumps({"input": [[1] * 60] * 1500}))
        until(lambda: s.requests() == 1, "the request does not begin")
        s.process.terminate()
        assert c.recv(100).startswith(b"HTTP/1.1 503 ")
        c.close()


def test_starts(encoder):
    for words, code, message in ((["--embeddings"], 2, "--pooling"), (["--embeddings", "--pooling", "none"], 2, "--pooling"),
                                 (["--embeddings", "--pooling", "rank"], 3, "no classifier"), (["--reranking"], 2, "--pooling rank"),
                                 (["-m", str(encoder), "--pooling", "none"], 2, "--pooling")):
        done = subprocess.run([PROGRAM, "serve", "--port", "0", *words], capture_output=True, text=True, timeout=LIMIT)
        assert done.returncode == code and message in done.stderr, (words, done)


def main():
    with tempfile.TemporaryDirectory() as name:
        encoder = pathlib.Path(name) / "encoder.gguf"
        tiny.write_encoder(encoder)
        for name, test in sorted(globals().items()):
            if name.startswith("test_"):
                begin = time.monotonic()
                test(*([encoder] if test.__code__.co_argcount else []))
                print(f"{name[5:]}: {time.monotonic() - begin:.2f} s")


if __name__ == "__main__":
    main()
