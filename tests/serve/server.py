#!/usr/bin/env python3
"""The server as its clients see it: server.py GPURUN [TEST..]. It serves the built-in model on a port of its own."""

import concurrent.futures
import ctypes
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time

PROGRAM = sys.argv[1]
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"
failures = 0


def expect(what, right, found=None):
    global failures
    if not right:
        failures += 1
        print(f"FAILED: {what}" + ("" if found is None else f": {found!r}"), flush=True)


class Server:
    """gpurun serve with these flags, on a free port."""

    def __init__(self, *flags, env=None, ready=True):
        self.log = tempfile.NamedTemporaryFile("w+", prefix="serve", delete=True)
        self.process = subprocess.Popen([PROGRAM, "serve", "--port", "0", "-t", "1", "-lv", "4", *map(str, flags)], stderr=self.log,
                                        stdout=subprocess.DEVNULL, env={**os.environ, **(env or {})})
        self.port, self.scheme = 0, "http"
        if ready:
            found = self.wait_for(r"serving .* at (https?)://\S+:(\d+)[:,]")
            self.scheme, self.port = found[1], int(found[2])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.log.close()

    def text(self):
        self.log.seek(0)
        return self.log.read()

    def wait_for(self, pattern, seconds=60):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found = re.search(pattern, self.text())
            if found:
                return found
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        raise SystemExit(f"the server does not say {pattern}: {self.process.poll()} {self.text()}")

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)

    def ask(self, method, path, body=None, headers=None, connection=None):
        """Returns status, headers and body, which is read as JSON where it is."""
        c = connection or self.connect()
        c.request(method, path, json.dumps(body) if isinstance(body, (dict, list)) else body, headers or {})
        r = c.getresponse()
        data = r.read()
        if not connection:
            c.close()
        return r.status, r.headers, json.loads(data) if r.headers["Content-Type"] == "application/json" and data else data

    def raw(self, data, seconds=60, more=()):
        """Sends bytes as they are; returns all that comes until the server closes, None: it does not."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=seconds) as s:
            try:
                s.sendall(data)
                for pause, piece in more:
                    time.sleep(pause)
                    s.sendall(piece)
            except OSError:
                pass
            return everything(s)

    def end(self, number=signal.SIGTERM, seconds=20):
        self.process.send_signal(number)
        return self.process.wait(seconds)


def everything(s):
    found = b""
    try:
        while True:
            piece = s.recv(65536)
            if not piece:
                return found
            found += piece
    except socket.timeout:
        return None
    except OSError:
        return found


def error_of(answer):
    status, headers, body = answer
    e = body["error"] if isinstance(body, dict) else {}
    expect("an error has all its members", {"message", "type", "param", "code"} == set(e), answer)
    expect("an error is JSON", headers["Content-Type"] == "application/json", headers.items())
    return status, e.get("type"), e.get("message")


# ---- routes ----


def test_memory_of_connections():
    """What connections took is the system's again when they have closed."""
    if "ASAN_OPTIONS" in os.environ:  # which keeps what is freed
        return
    with Server() as s:
        seen = []
        for _ in range(4):
            resident = int(open(f"/proc/{s.process.pid}/statm").read().split()[1]) * 4
            seen.append(resident)
            clients = [socket.create_connection(("127.0.0.1", s.port)) for _ in range(900)]
            for c in clients:
                c.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            for c in clients:
                c.recv(4096)
                c.close()
            time.sleep(0.3)
        expect("900 connections leave less than 2 MiB behind", seen[-1] - seen[0] < 2048, seen)


def test_memory_of_requests():
    """So is what many large requests took at once."""
    if "ASAN_OPTIONS" in os.environ:
        return
    body = {"prompt": ["x " * 60] * 100, "max_tokens": 1}
    with Server("-np", 8, "-c", 256, "--queue", 4096) as s, concurrent.futures.ThreadPoolExecutor(8) as pool:
        def resident():
            return int(open(f"/proc/{s.process.pid}/statm").read().split()[1]) * 4
        expect("a large request", s.ask("POST", "/v1/completions", body)[0] == 200)
        first = resident()
        expect("eight at once", {x[0] for x in pool.map(lambda _: s.ask("POST", "/v1/completions", body), range(8))} == {200})
        most, end = resident(), time.monotonic() + 20
        while resident() > first + 2048 and time.monotonic() < end:
            time.sleep(0.1)
        expect("eight at once leave less than 2 MiB more than one behind", resident() - first < 2048, (first, most, resident()))


def test_state():
    with Server("--chat-template", TEMPLATE, "-a", "näme/with slash", "--no-webui") as s:
        for path in "/health", "/v1/health":
            expect(path, s.ask("GET", path)[::2] == (200, {"status": "ok"}))
        status, headers, body = s.ask("HEAD", "/health")
        expect("HEAD", status == 200 and body == b"" and headers["Content-Length"] == "15")
        status, _, models = s.ask("GET", "/v1/models")
        model = models["data"][0]
        expect("models", status == 200 and models["object"] == "list" and model["id"] == "näme/with slash"
               and model["object"] == "model" and abs(model["created"] - time.time()) < 120 and model["meta"]["n_ctx"] == 256
               and model["meta"]["n_vocab"] == 768, models)
        for path in "/v1/models/n%C3%A4me%2Fwith%20slash", "/models/n%C3%A4me/with%20slash":
            expect(path, s.ask("GET", path)[::2] == (200, model))
        expect("another model", error_of(s.ask("GET", "/v1/models/other"))[:2] == (404, "not_found_error"))
        expect("the version", re.fullmatch(r"\d+\.\d+\.\d+", s.ask("GET", "/version")[2]["version"]))
        for path in "/", "/nothing", "/v1/", "/v1", "/v1/v1/health", "/health/", "/models/", "/props", "/metrics", "/slots":
            expect(f"no {path}", error_of(s.ask("GET", path))[:2] == (404, "not_found_error"))
        for method in "POST", "DELETE", "OPTIONS", "PUT":
            answer = s.ask(method, "/v1/models", b"{}")
            expect(f"{method} of models", error_of(answer)[0] == 405 and answer[1]["Allow"] == "GET, HEAD", answer)
        answer = s.ask("GET", "/tokenize")
        expect("GET of tokenize", error_of(answer)[0] == 405 and answer[1]["Allow"] == "POST", answer)
        with_kept = s.connect()
        for _ in range(3):
            expect("connections are kept", s.ask("GET", "/health", connection=with_kept)[0] == 200 and with_kept.sock)


def test_tokens():
    with Server("--chat-template", TEMPLATE) as s:
        for text in "Once upon a time", "", "grüße, 世界 🐈", "a\u0000b", "  \n\t":
            tokens = s.ask("POST", "/tokenize", {"content": text})[2]["tokens"]
            expect(f"{text!r} comes back", s.ask("POST", "/detokenize", {"tokens": tokens})[2] == {"content": text}, tokens)
        out = subprocess.run([PROGRAM, "tokenize", "-q", "--ids", "--no-bos", "-p", "Once upon"], capture_output=True, check=True)
        plain = s.ask("POST", "/v1/tokenize", {"content": "Once upon", "unknown": [1, {}]})[2]["tokens"]
        special = s.ask("POST", "/tokenize", {"content": "Once upon", "add_special": True})[2]["tokens"]
        for fields, want in (({}, special), ({"add_special_tokens": True}, special), ({"add_special_tokens": False, "add_special": True}, plain)):
            expect(f"vLLM's form {fields}", s.ask("POST", "/tokenize", {"prompt": "Once upon", **fields})[2]["tokens"] == want and special != plain, want)
        answer = s.ask("POST", "/tokenize", {"prompt": 7})
        expect("a prompt that is no text", error_of(answer)[0] == 400 and answer[2]["error"]["param"] == "prompt", answer)
        known = s.ask("GET", "/tokenizer_info")[2]
        first = s.ask("POST", "/detokenize", {"tokens": special[:1]})[2]["content"]
        expect("the tokenizer's special tokens", known["bos_token"] == first and isinstance(known["eos_token"], str) and "chat_template" in known, known)
        expect("tokens as gpurun tokenize has them", plain == json.loads(out.stdout), plain)
        special = s.ask("POST", "/tokenize", {"content": "Once upon", "add_special": True})[2]["tokens"]
        expect("special tokens", special[1:] == plain, special)
        pieces = s.ask("POST", "/tokenize", {"content": "grüße", "with_pieces": True})[2]["tokens"]
        data = b"".join(p["piece"].encode() if isinstance(p["piece"], str) else bytes(p["piece"]) for p in pieces)
        expect("pieces", data == "grüße".encode() and all("id" in p for p in pieces), pieces)
        known = s.ask("POST", "/tokenize", {"content": "<|endoftext|>"})[2]["tokens"]
        expect("control tokens", known == [0] and
               len(s.ask("POST", "/tokenize", {"content": "<|endoftext|>", "parse_special": False})[2]["tokens"]) > 1, known)
        status, _, body = s.ask("POST", "/detokenize", {"tokens": [128]})
        expect("half a character", status == 200 and isinstance(body["content"], str), body)
        for field, body in (("content", {}), ("content", {"content": 1}), ("add_special", {"content": "a", "add_special": 1})):
            answer = s.ask("POST", "/tokenize", body)
            expect(f"{body}", error_of(answer)[:2] == (400, "invalid_request_error") and answer[2]["error"]["param"] == field, answer)
        for tokens in [768], [-1], [1.5], ["a"], "a", None, [1 << 40]:
            expect(f"tokens {tokens}", error_of(s.ask("POST", "/detokenize", {"tokens": tokens}))[0] == 400)
        many = [5] * 90000
        expect("many tokens", len(s.ask("POST", "/detokenize", {"tokens": many})[2]["content"]) == 90000)


def test_template():
    with Server("--chat-template", TEMPLATE) as s:
        def prompt(**request):
            return s.ask("POST", "/apply-template", request)
        messages = [{"role": "system", "content": "S"}, {"role": "user", "content": [{"type": "text", "text": "a"},
                                                                                  {"type": "text", "text": "ü"}]}]
        expect("a prompt", prompt(messages=messages)[2] == {"prompt": "<system>S<user>a\nü<a>"}, prompt(messages=messages))
        expect("without the answer's beginning",
               prompt(messages=messages, add_generation_prompt=False)[2] == {"prompt": "<system>S<user>a\nü"})
        for wrong in None, [], {}, "a", [1], [{}], [{"role": "user", "content": 1}], [{"role": "user", "content": [{"type": "image_url"}]}]:
            expect(f"messages {wrong}", error_of(prompt(messages=wrong))[0] == 400)
        expect("variables that are the template's",
               error_of(prompt(messages=messages, chat_template_kwargs={"bos_token": "x"}))[0] == 400
               and error_of(prompt(messages=messages, chat_template_kwargs=[]))[0] == 400
               and prompt(messages=messages, chat_template_kwargs={"x": 1})[0] == 200)
    with Server() as s:
        expect("no template", "no chat template" in error_of(s.ask("POST", "/apply-template", {"messages": messages}))[2])
        tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
        for choice in "required", {"type": "function", "function": {"name": "f"}}:
            wrong = error_of(s.ask("POST", "/chat/completions", {"messages": messages, "tools": tools, "tool_choice": choice}))
            expect(f"calls without a template {choice}", wrong[0] == 400 and "chat template" in wrong[2], wrong)


def expect_waits(description, routes, operation):
    """Routes about a model say how it is named, and POSTs, which wait for it, how that may end."""
    for route, kind in routes.items():
        words = operation.get(route, "")
        same = re.search(r"responses: \*(\w+)", words)
        words += re.search(rf"responses: &{same[1]} \{{(.*?)\n  /", description, re.DOTALL)[1] if same else ""
        waits = route[0] == "POST" and (kind == "MODEL" or route[1].startswith("/models/"))
        wanted = ["parameters: [*named]"] * (kind == "MODEL") + ['"400"', '"404"'] * (kind == "MODEL") + ['"429"', '"500"', '"503"'] * waits
        missing = [word for word in wanted if word not in words]
        expect(f"what {route} may answer is described", not missing, missing)


def properties(schemas, name):
    """Names of the properties of a request, those of the schemas that it has all of among them."""
    block = re.search(rf"\n    {name}:(.*?)(?=\n    \S|\Z)", schemas, re.DOTALL)[1]
    found = set(re.findall(r"(\w+):", block[block.index("properties:"):])) if "properties:" in block else set()
    return found.union(*(properties(schemas, other) for other in re.findall(r'\n        - \{\$ref: "#/components/schemas/(\w+)"\}', block)))


def expect_fields(description, routes, operation, sources):
    """Bodies are described with the fields that the server reads, and no others."""
    schemas = description[description.index("# ---- fields of requests ----"):description.index("# ---- answers ----")]
    described = set(re.findall(r"(\w+):", schemas))
    read = set(re.findall(r'(?:gr_field\w*|json_object_get)\([^;"]*?"(\w+)"', sources))
    expect("names of fields are read", len(read) > 60, read)
    expect("every field that is read is described", read <= described, read - described)
    words = {"additionalProperties", "allOf", "anyOf", "const", "default", "description", "enum", "items", "maxItems", "maxLength", "maximum",
             "minItems", "minLength", "minimum", "not", "pattern", "prefixItems", "properties", "propertyNames", "ref", "required"}
    plain = re.sub(r'"[^"\n]*"', "", schemas)
    names = {name for name in re.findall(r"(\w+):", plain) if name[0].islower()} - words
    expect("every field that is described is read", not {name for name in names if f'"{name}"' not in sources}, names)
    for route, kind in routes.items():
        if route[0] != "POST" or (kind != "MODEL" and not route[1].startswith("/models/")):
            continue
        found = re.search(r'requestBody: \{.*schemas/(\w+)"', operation.get(route, ""))
        name = found and found[1]
        expect(f"the model in the body of {route} is described", name == "Strengths" or (name and "model" in properties(schemas, name)), name)


def test_description():
    """The description has the routes that there are, with their methods and fields."""
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tools/serve")
    with open(os.path.join(folder, "openapi.yaml"), encoding="utf-8") as f:
        text = f.read()
    with open(os.path.join(folder, "routes.c"), encoding="utf-8") as f:
        routes = {(method, path): kind for method, path, kind in re.findall(r'\{"(GET|POST|DELETE)", "([^"]+)", \w+, GR_ROUTE_(\w+)\}', f.read())}
    expect("all of them are read", len(routes) > 35, routes)
    described, operation, path = {}, {}, None
    for line in text[text.index("\npaths:"):text.index("\ncomponents:")].splitlines():
        found = re.fullmatch(r"  (/\S*):", line)
        path = found[1] if found else path
        found = re.fullmatch(r"    (get|post|delete|put|patch|head|options):", line)
        if found:
            described.setdefault(path, set()).add(found[1].upper())
            words = operation[found[1].upper(), re.sub(r"\{\w+\}", "*", path)] = []
        elif path and described.get(path):
            words.append(line)
    operation = {name: "\n".join(lines) for name, lines in operation.items()}
    sources = "".join(file.read_text(encoding="utf-8") for file in pathlib.Path(folder).glob("*.c"))
    expect_waits(text, routes, operation)
    expect_fields(text, routes, operation, sources)
    listed = {(method, re.sub(r"\{\w+\}", "*", path)) for path, methods in described.items() for method in methods}
    expect("every route is described", set(routes) <= listed, set(routes) - listed)
    expect("every route that is described is there", listed <= set(routes), listed - set(routes))
    with tempfile.TemporaryDirectory() as models, Server("--props", "--slots", "--metrics", "--models-dir", models) as s:
        status, headers, body = s.ask("GET", "/openapi.yaml")
        expect("the server has its description", status == 200 and body.decode() == text and headers["Content-Type"] == "application/yaml", headers.items())
        expect("it is kept", s.ask("GET", "/v1/openapi.yaml", headers={"If-None-Match": headers["ETag"]})[0] == 304)
        for path, methods in described.items():
            allowed = s.ask("PUT", re.sub(r"\{\w+\}", "x", path), b"{}")[1]["Allow"]
            expect(f"methods of {path}", set((allowed or "").split(", ")) - {"HEAD"} == methods, allowed)


# ---- bodies ----


def test_bodies():
    with Server("--max-body", 65536) as s:
        def body(data, path="/tokenize", **headers):
            return error_of(s.ask("POST", path, data, headers))
        status, kind, message = body(b'{"content":\n  x}')
        expect("JSON that is none", (status, kind) == (400, "invalid_request_error") and "line 2, column 3" in message, message)
        expect("twice the same", "duplicate" in body(b'{"content":"a","content":"b"}')[2])
        for data in b"", b"[]", b"1", b'"a"', b"{}x", b'{"content":"\xff"}', b'{"content":"\\ud800"}', b'{"content":"a\x00b"}', b"\xef\xbb\xbf{}":
            expect(f"{data}", body(data)[0] == 400)
        expect("too deep", body(b'{"content":' + b"[" * 70 + b"]" * 70 + b"}")[0] == 400)
        expect("unclosed and deep", body(b"[" * 60000)[0] == 400)
        expect("depth in a text", s.ask("POST", "/tokenize", {"content": '"[[{{' * 100})[0] == 200)
        expect("too large", body(b"x" * 65537)[:2] == (413, "invalid_request_error"))
        expect("as large as may be", s.ask("POST", "/tokenize", b'{"content":"%s"}' % (b"a" * (65536 - 14)))[0] == 200)
        expect("much too large", s.raw(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n").startswith(
            b"HTTP/1.1 413"))
        expect("as long as no number", s.raw(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999999999999\r\n\r\n")
               .startswith(b"HTTP/1.1 4"))
        expect("compressed", body(b"{}", **{"Content-Encoding": "gzip"})[0] == 415)
        chunked = (b"%x\r\n" % 4096 + b"a" * 4096 + b"\r\n")
        head = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        found = s.raw(head + b"12\r\n" + b'{"content": "Once"' + b"\r\n1\r\n}\r\n0\r\n\r\n")
        expect("chunks", found.startswith(b"HTTP/1.1 200"), found)
        expect("chunks that are too many", s.raw(head + chunked * 20 + b"0\r\n\r\n").startswith(b"HTTP/1.1 413"))
        expect("chunks without end", s.raw(head + chunked * 200) is not None)
        found = s.raw(b"POST /nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\nExpect: 100-continue\r\n\r\n")
        expect("who asks first", found.startswith(b"HTTP/1.1 404"), found)
        with socket.create_connection(("127.0.0.1", s.port), timeout=5) as c:
            c.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 15\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n")
            expect("continue", c.recv(100).startswith(b"HTTP/1.1 100"))
            c.sendall(b'{"content":"a"}')
            expect("and the answer", everything(c).startswith(b"HTTP/1.1 200"))


def test_framing():
    """Requests that two servers in a row may read differently are refused, and the connection is closed."""
    with Server() as s:
        post, host = b"POST /tokenize HTTP/1.1\r\n", b"Host: localhost\r\n"
        body = b'{"content":"a"}GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n'
        refused = {
            "both lengths": post + host + b"Content-Length: 15\r\nTransfer-Encoding: chunked\r\n\r\n" + body,
            "two lengths": post + host + b"Content-Length: 15\r\nContent-Length: 4\r\n\r\n" + body,
            "twice the same length": post + host + b"Content-Length: 15\r\nContent-Length: 15\r\n\r\n" + body,
            "a list of lengths": post + host + b"Content-Length: 15, 15\r\n\r\n" + body,
            "a negative length": post + host + b"Content-Length: -1\r\n\r\n" + body,
            "a length with a sign": post + host + b"Content-Length: +15\r\n\r\n" + body,
            "a length in hexadecimal": post + host + b"Content-Length: 0xF\r\n\r\n" + body,
            "another coding": post + host + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + body,
            "two codings": post + host + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n" + body,
            "chunks of no number": post + host + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\nabc\r\n0\r\n\r\n" + body,
            "chunks that are longer": post + host + b"Transfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n0\r\n\r\n" + body,
            "no host": post + b"Content-Length: 15\r\n\r\n" + body,
            "two hosts": post + host + b"Host: example.org\r\nContent-Length: 15\r\n\r\n" + body,
            "a blank before the colon": post + host + b"Content-Length : 15\r\n\r\n" + body,
            "a blank in a name": post + host + b"Content Length: 15\r\n\r\n" + body,
            "a carriage return in a value": post + host + b"A: a\rContent-Length: 15\r\n\r\n" + body,
            "a line feed alone": post + host + b"A: a\nContent-Length: 15\r\n\r\n" + body,
            "a line feed behind the first line": post[:-2] + b"\n" + host + b"Content-Length: 15\r\n\r\n" + body,
            "a line feed behind the last field": post + host + b"Content-Length: 15\n\r\n" + body,
            "a last line of a line feed": post + host + b"Content-Length: 15\r\n\n" + body,
            "line feeds alone": (post + host + b"Content-Length: 15\r\n\r\n").replace(b"\r", b"") + body,
            "a line feed alone, and no body": b"GET /health HTTP/1.0\r\n\n",
            "a field of two lines": post + host + b"A: a\r\n b\r\nContent-Length: 15\r\n\r\n" + body,
            "the last field of two lines": post + host + b"Content-Length: 15\r\nA: a\r\n\tb\r\n\r\n" + body,
            "a folded name": post + host + b"Content-Length\r\n : 15\r\n\r\n" + body,
            "a line of blanks": post + host + b"Content-Length: 15\r\n \r\n\r\n" + body,
            "a zero in a value": post + host + b"A: a\0b\r\nContent-Length: 15\r\n\r\n" + body,
            "a zero behind a value": post + host + b"Content-Length: 15\0\r\n\r\n" + body,
            "a zero in a name": post + host + b"A\0b: a\r\nContent-Length: 15\r\n\r\n" + body,
            "a zero in front of a name": post + host + b"Content-Length: 15\r\n\0A: a\r\n\r\n" + body,
            "a zero in the address": b"GET /health\0/x HTTP/1.1\r\n" + host + b"\r\n",
            "two blanks in the first line": b"GET  /health HTTP/1.1\r\n" + host + b"\r\n",
            "a long address": b"GET /" + b"a" * 3000 + b" HTTP/1.1\r\n" + host + b"\r\n",
            "a long query": b"GET /health?a=" + b"a" * 3000 + b" HTTP/1.1\r\n" + host + b"\r\n",
            "a long field": b"GET /health HTTP/1.1\r\n" + host + b"A: " + b"a" * 20000 + b"\r\n\r\n",
            "a very long field": b"GET /health HTTP/1.1\r\n" + host + b"A: " + b"a" * 2000000 + b"\r\n\r\n",
            "many fields": b"GET /health HTTP/1.1\r\n" + host + b"A: a\r\n" * 200 + b"\r\n",
            "no protocol": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 20 + b"\r\n\r\n",
            "another protocol": b"GET /health HTTP/7.0\r\n" + host + b"\r\n",
        }
        library = ctypes.CDLL("libmicrohttpd.so.12")
        library.MHD_get_version.restype = ctypes.c_char_p
        if library.MHD_get_version() == b"0.9.77":  # makes blanks of the ends of lines that go on
            del refused["a field of two lines"], refused["the last field of two lines"]
        for name, data in refused.items():
            found = s.raw(data)
            expect(name, found is not None and b"HTTP/1.1 2" not in found, found)
        for n in 1, 10, 99, 101, 300, 480, 600, 1000, 2000, 5000, 15000: # libmicrohttpd keeps some bytes for each parameter
            for parameter in b"&", b"a&", b"a=b&", b"aaaaaaaa&":
                found = s.raw(b"POST /tokenize?" + parameter * n + b" HTTP/1.1\r\n" + host + b"Content-Length: 15\r\nConnection: close\r\n\r\n" + body[:15])
                good = b"HTTP/1.1 200" if n <= 100 else b"HTTP/1.1 414"
                if n * len(parameter) < 15000:
                    expect(f"{n} parameters {parameter}", found and found.startswith(good), found)
        expect("it is still there", s.ask("GET", "/health")[0] == 200)
        for name, fields in (("an empty value", b"A:\r\n"), ("blanks around a value", b"A: \t a \t \r\nB: \r\n"), ("cookies", b"Cookie: a=1; b=\"2\"\r\nCookie: c\r\n"),
                             ("many fields", b"A: a\r\n" * 90), ("long fields", b"A: " + b"a" * 14000 + b"\r\n")):
            first = b"POST /tokenize?a=%20&b HTTP/1.1\r\n" + host
            found = s.raw((first + fields + b"Content-Length: 15\r\n\r\n" + body[:15]) * 2 + first + b"Content-Length: 15\r\nConnection: close\r\n" + fields + b"\r\n" + body[:15])
            expect(name, found and found.count(b"HTTP/1.1 200") == 3, found)
        data = b"GET /health?a=b HTTP/1.1\r\n" + host + b"A: a\r\nB:\r\nConnection: close\r\n\r\n"
        found = s.raw(b"", more=[(0.001, data[i:i + 1]) for i in range(len(data))])
        expect("byte by byte", found and found.startswith(b"HTTP/1.1 200"), found)
        found = s.raw(b"GET /health HTTP/1.0\r\n\r\n")
        expect("HTTP/1.0", b" 200 " in found[:20], found)
        found = s.raw(b"GET /health HTTP/1.1\r\n" + host + b"\r\nGET /version HTTP/1.1\r\n" + host + b"Connection: close\r\n\r\n")
        expect("two requests at once", found.count(b"HTTP/1.1 200") == 2 and found.index(b"status") < found.index(b"version"), found)


# ---- who may ask ----


def test_keys():
    with tempfile.NamedTemporaryFile("w", suffix=".keys") as keys:
        keys.write("# keys\nfirst-key\n\nsecond-key  \r\n")
        keys.flush()
        with Server("--api-key-file", keys.name, "--metrics", env={"GPURUN_API_KEY": "third,fourth"}) as s:
            expect("open routes", s.ask("GET", "/health")[0] == 200)
            for path in "/v1/models", "/version", "/metrics":
                answer = s.ask("GET", path)
                expect(f"{path} without a key", error_of(answer)[:2] == (401, "authentication_error")
                       and answer[1]["WWW-Authenticate"] == "Bearer", answer)
            for key in "first-key", "second-key", "third", "fourth":
                for headers in {"Authorization": f"Bearer {key}"}, {"Authorization": f"bearer  {key}"}, {"X-Api-Key": key}:
                    expect(f"{headers}", s.ask("GET", "/v1/models", headers=headers)[0] == 200)
            for key in "", "first", "first-key2", "# keys", "third,fourth", "FIRST-KEY":
                expect(f"key {key!r}", s.ask("GET", "/v1/models", headers={"Authorization": f"Bearer {key}"})[0] == 401)
            expect("another scheme", s.ask("GET", "/v1/models", headers={"Authorization": "Basic first-key"})[0] == 401)
            expect("any host", s.ask("GET", "/v1/models", headers={"Host": "example.org", "X-Api-Key": "third"})[0] == 200)
            expect("no key is told", "key" not in re.sub("api[- ]key", "", s.text().lower().replace(keys.name, "")), s.text())
    for flags, words in ((["--api-key", "a b"], "visible ASCII"), (["--api-key", ""], "empty"), (["--api-key-file", "/dev/null"], "no API key"),
                         (["--host", "0.0.0.0"], "--insecure-no-auth"), (["--host", "no.such.host.invalid"], "--insecure-no-auth"),
                         (["-a", ""], "UTF-8"), (["--ssl-key-file", "a"], "--ssl-cert-file")):
        with Server(*flags, ready=False) as s:
            expect(f"{flags}", s.process.wait(60) == 2 and words in s.text(), s.text())
    with Server("--api-key", "a", "--host", "0.0.0.0") as s:
        expect("a key on the command line", "other users" in s.text() and s.ask("GET", "/models", headers={"X-Api-Key": "a"})[0] == 200)


def test_origins():
    with Server() as s:
        for host in "localhost", "127.0.0.1", "[::1]", "LocalHost":
            expect(host, s.ask("GET", "/models", headers={"Host": f"{host}:{s.port}"})[0] == s.ask("GET", "/models", headers={"Host": host})[0] == 200)
        for host in "example.org", f"example.org:{s.port}", "localhost.example.org", "127.0.0.1.example.org:80", "", ":80", "[::1].example.org":
            expect(f"host {host!r}", s.ask("GET", "/models", headers={"Host": host})[0] == 403)
        own = f"http://localhost:{s.port}"
        expect("its own page", s.ask("GET", "/models", headers={"Host": f"localhost:{s.port}", "Origin": own})[0] == 200)
        for origin in "http://example.org", "null", "https://localhost", own + "0", f"https://localhost:{s.port}":
            answer = s.ask("POST", "/tokenize", {"content": "a"}, {"Host": f"localhost:{s.port}", "Origin": origin})
            expect(f"origin {origin}", error_of(answer)[0] == 403 and "Access-Control-Allow-Origin" not in answer[1], answer)
    with Server("--cors-origin", "https://page.example") as s:
        status, headers, body = s.ask("OPTIONS", "/v1/models", headers={"Origin": "https://page.example"})
        expect("before a request", (status, body) == (204, b"") and headers["Access-Control-Allow-Origin"] == "https://page.example"
               and "POST" in headers["Access-Control-Allow-Methods"] and "Authorization" in headers["Access-Control-Allow-Headers"],
               headers.items())
        status, headers, _ = s.ask("GET", "/v1/models", headers={"Origin": "https://page.example"})
        expect("a request", status == 200 and headers["Access-Control-Allow-Origin"] == "https://page.example" and headers["Vary"] == "Origin")
        status, headers, _ = s.ask("GET", "/v1/models", headers={"Origin": "https://other.example"})
        expect("another page", status == 403 and "Access-Control-Allow-Origin" not in headers)
    with Server("--cors-origin", "*", "--api-key", "a") as s:
        status, headers, _ = s.ask("GET", "/v1/models", headers={"Origin": "https://other.example"})
        expect("errors can be read too", status == 401 and headers["Access-Control-Allow-Origin"] == "*")
        expect("no key before a request", s.ask("OPTIONS", "/v1/models", headers={"Origin": "https://other.example"})[0] == 204)


def test_tls():
    with tempfile.TemporaryDirectory() as d:
        made = subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
                               "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", d + "/key",
                               "-out", d + "/cert"], capture_output=True)
        if made.returncode:
            return
        with Server("--ssl-key-file", d + "/key", "--ssl-cert-file", d + "/cert", "--header-timeout", 1) as s:
            expect("its address", s.scheme == "https")
            c = http.client.HTTPSConnection("127.0.0.1", s.port, timeout=60, context=ssl.create_default_context(cafile=d + "/cert"))
            expect("TLS", s.ask("GET", "/health", connection=c)[0] == 200)
            expect("a large answer", len(s.ask("POST", "/tokenize", {"content": "a b" * 50000}, connection=c)[2]["tokens"]) > 50000)
            expect("no TLS", not (s.raw(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n") or b"").startswith(b"HTTP/1.1 200"))
            expect("no handshake", s.raw(b"") == b"")
        with Server("--ssl-key-file", d + "/cert", "--ssl-cert-file", d + "/key", ready=False) as s:
            expect("the wrong way round", s.process.wait(60) == 6 and "pair" in s.text(), s.text())


# ---- many clients, slow ones ----


def test_slow():
    with Server("--header-timeout", 1, "--timeout", 1) as s:
        def cut(data, more=()):
            found = s.raw(data, more=more)
            return found is not None and not found.startswith(b"HTTP/1.1 200")
        drops, post = [(0.3, b"a")] * 10, b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n"
        forms = {"silence": (b"",), "half a header": (b"GET /health HTT",), "half a body": (post + b"{",), "a body in drops": (post, drops),
                 "a header in drops": (b"GET /health HTTP/1.1\r\nHost: localhost\r\nA: ", drops)}
        with concurrent.futures.ThreadPoolExecutor(len(forms)) as pool:
            for name, right in zip(forms, pool.map(lambda form: cut(*form), forms.values())):
                expect(name, right)
        c = s.connect()
        expect("a pause between requests", s.ask("GET", "/health", connection=c)[0] == 200 and not time.sleep(2)
               and s.ask("GET", "/health", connection=c)[0] == 200)
        # an answer that nobody reads: more than the buffers of the system hold
        with socket.socket() as c:
            c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            c.connect(("127.0.0.1", s.port))
            body = json.dumps({"content": "a b" * 400000, "with_pieces": True}).encode()
            c.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            c.recv(1)
            s.wait_for("stalled", 60)


def quickness(s, n=20):
    """The median of n times that /health takes, in seconds: one may be long where the machine is busy."""
    times = []
    for _ in range(n):
        began = time.monotonic()
        expect("health", s.ask("GET", "/health")[0] == 200)
        times.append(time.monotonic() - began)
    return statistics.median(times)


def test_many():
    with Server("--max-connections", 200) as s:
        idle = [socket.create_connection(("127.0.0.1", s.port)) for _ in range(300)]
        took = quickness(s)
        expect("health beside 300 idle connections", took < 1, took)
        open_still = 0
        for c in idle:
            c.settimeout(0.01)
            try:
                open_still += c.recv(1) != b""
            except socket.timeout:
                open_still += 1
        expect("the oldest are closed", 150 <= open_still <= 200, open_still)
        for c in idle[200:]:
            c.close()
        slow = [socket.create_connection(("127.0.0.1", s.port)) for _ in range(150)]
        for c in slow:
            c.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{")
        took = quickness(s)
        expect("health beside slow bodies", took < 1, took)
        more = [socket.create_connection(("127.0.0.1", s.port)) for _ in range(100)]
        for c in more:
            c.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{")
        time.sleep(0.2)
        expect("health beside too many", s.ask("GET", "/health")[0] == 200)
        answer = s.ask("GET", "/v1/models")
        expect("others are refused", error_of(answer)[0] == 503 and answer[1]["Retry-After"] == "1", answer)
        for c in idle + slow + more:
            c.close()
        time.sleep(0.3)
        expect("and let in again", s.ask("GET", "/v1/models")[0] == 200)


# ---- begin and end ----


def test_end():
    with Server() as s:
        kept = s.connect()
        s.ask("GET", "/health", connection=kept)
        c = socket.create_connection(("127.0.0.1", s.port), timeout=60)
        c.sendall(b'POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 15\r\n\r\n{"content"')
        time.sleep(0.2)
        s.process.send_signal(signal.SIGTERM)
        s.wait_for("stopping")
        time.sleep(0.2)
        c.sendall(b':"a"}')
        found = everything(c)
        expect("a request that has begun is answered", found.startswith(b"HTTP/1.1 200") and b"Connection: close" in found, found)
        expect("code of a quiet end", s.process.wait(60) == 0)
        try:
            s.ask("GET", "/health")
            expect("nobody listens", False)
        except OSError:
            pass
    for flags, signals, code in (("--drain", 0), [signal.SIGTERM], 143), (("--drain", 60), [signal.SIGINT, signal.SIGINT], 130):
        with Server(*flags) as s:
            with socket.create_connection(("127.0.0.1", s.port)) as c:
                c.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 15\r\n\r\n{")
                time.sleep(0.2)
                for number in signals:
                    s.process.send_signal(number)
                    time.sleep(0.2)
                expect(f"{flags} {signals}", s.process.wait(60) == code, s.process.returncode)
    for i in range(6): # a body that is complete while the server closes
        with Server("--drain", 0) as s, socket.create_connection(("127.0.0.1", s.port)) as c:
            c.sendall(b'POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 15\r\n\r\n{"content":"a"')
            time.sleep(0.1)
            s.process.send_signal(signal.SIGTERM)
            time.sleep(0.012 * i)
            try:
                c.sendall(b"}")
            except OSError:
                pass
            expect(f"the last byte {12 * i} ms behind the signal", s.process.wait(60) in (0, 143), s.process.returncode)
    with Server() as s:
        with Server("--port", s.port, ready=False) as other:
            expect("the port is taken", other.process.wait(60) == 6 and "--port N takes another" in other.text(), other.text())


def test_systemd():
    code = "import os, sys; os.dup2(int(sys.argv[1]), 3); os.environ['LISTEN_PID'] = str(os.getpid()); os.execv(sys.argv[2], sys.argv[2:])"

    def start(listener, notify, *words):
        return subprocess.Popen([sys.executable, "-c", code, str(listener.fileno()), PROGRAM, "serve", "-q", "-t", "1", *words], pass_fds=[listener.fileno()],
                                stderr=subprocess.DEVNULL, env={**os.environ, "NOTIFY_SOCKET": notify, "LISTEN_FDS": "1"})

    with tempfile.TemporaryDirectory() as d, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.bind(d + "/notify")
        notify.settimeout(30)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            expect("a start that fails", start(listener, d + "/notify", "-m", d + "/none").wait(20) > 0)
            socket.create_connection(listener.getsockname()).close() # systemd's socket goes on
            listener.accept()[0].close()
            process = start(listener, d + "/notify")
            expect("it is ready", notify.recv(100) == b"READY=1")
            c = http.client.HTTPConnection("127.0.0.1", listener.getsockname()[1], timeout=60)
            c.request("GET", "/health")
            expect("its socket", c.getresponse().status == 200)
            c.close()
            process.terminate()
            expect("it stops", notify.recv(100) == b"STOPPING=1" and process.wait(60) == 0)
        with socket.create_server(("0.0.0.0", 0)) as listener:
            expect("a socket for everybody", start(listener, d + "/notify").wait(20) == 2)


# ---- figures ----


def test_metrics():
    with Server("--metrics", "--props") as s:
        status, headers, text = s.ask("GET", "/metrics")
        expect("their type", status == 200 and headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8")
        kinds, values = {}, {}
        for line in text.decode().splitlines():
            head = re.fullmatch(r"# (HELP|TYPE) (gpurun:\w+) (.+)", line)
            value = re.fullmatch(r'(gpurun:\w+)(\{(?:\w+="[^"\\\n]*",?)*\})? ([-+.\deE]+|\+Inf|NaN)', line)
            expect("a line", head or value, line)
            if head and head[1] == "TYPE":
                expect("once", head[2] not in kinds, line)
                kinds[head[2]] = head[3]
            elif value:
                base = re.sub("_(bucket|sum|count)$", "", value[1])
                kind = kinds.get(value[1]) or kinds.get(base)
                expect("a type before its values", kind in ("gauge", "counter", "histogram"), line)
                expect("names of counters", (kind == "counter") == value[1].endswith("_total"), line)
                values.setdefault(value[1], []).append((value[2], float(value[3])))
        for name in ("requests_running", "requests_waiting", "kv_cache_usage_ratio", "gpu_layers", "prompt_tokens_total",
                     "prompt_tokens_cached_total", "generated_tokens_total", "requests_total", "cancelled_total", "preemptions_total"):
            expect(name, "gpurun:" + name in values)
        for name in "ttft_seconds", "inter_token_seconds", "e2e_seconds", "queue_seconds", "batch_tokens":
            buckets = values[f"gpurun:{name}_bucket"]
            counts = [v for _, v in buckets]
            bounds = [float(re.search('le="([^"]+)"', labels)[1]) for labels, _ in buckets]
            expect(name, kinds["gpurun:" + name] == "histogram" and counts == sorted(counts) and bounds == sorted(set(bounds))
                   and bounds[-1] == float("inf") and counts[-1] == values[f"gpurun:{name}_count"][0][1], buckets)
        props = s.ask("GET", "/props")[2]
        expect("properties", props["total_slots"] == 4 and props["default_generation_settings"]["n_ctx"] == 256
               and props["bos_token"] == "<|endoftext|>", props)


for name, test in [(n, t) for n, t in globals().items() if n.startswith("test_")]:
    if len(sys.argv) < 3 or name in sys.argv[2:]:
        start = time.monotonic()
        test()
        print(f"{name} {time.monotonic() - start:.1f} s", flush=True)
sys.exit(failures > 0)
