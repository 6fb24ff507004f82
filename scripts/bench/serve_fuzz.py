"""Requests that are wrong in many ways, for scripts/bench/serve: mutations of valid ones as JSON, as bytes and as HTTP."""
import copy
import json
import random
import re
import socket
import time

SAY = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Where is the ball?"}]
TOOL = {"type": "function", "function": {"name": "look", "description": "d", "parameters": {
    "type": "object", "properties": {"n": {"type": "integer", "minimum": 1}, "at": {"enum": ["a", "b"]}}, "required": ["n"]}}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "number"}}}, "required": ["a"]}
VALID = [
    ("/v1/completions", {"prompt": "Once upon", "max_tokens": 4, "temperature": 0.8, "seed": 1, "stop": ["!"], "logprobs": 2, "echo": True,
                         "n": 2, "stream": True, "stream_options": {"include_usage": True}, "logit_bias": {"5": -1}}),
    ("/v1/completions", {"prompt": [[5, 6, 7], [8]], "max_tokens": 3, "response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}},
                         "samplers": ["top_k", "temperature"], "dry_multiplier": 1, "dry_sequence_breakers": ["x"]}),
    ("/completion", {"prompt": ["a", "b"], "n_predict": 4, "n_probs": 3, "grammar": 'root ::= "a" ("b" | [c-e]{2,5})*', "mirostat": 2,
                     "return_tokens": True, "logit_bias": [[5, 1.5], ["the", False]]}),
    ("/v1/chat/completions", {"messages": SAY, "max_tokens": 4, "logprobs": True, "top_logprobs": 2, "stream": True, "tools": [TOOL],
                              "tool_choice": "auto", "chat_template_kwargs": {"x": [1]}}),
    ("/v1/chat/completions", {"messages": SAY + [{"role": "assistant", "content": None, "tool_calls": [
        {"id": "a", "type": "function", "function": {"name": "look", "arguments": '{"n": 1}'}}]}, {"role": "tool", "tool_call_id": "a",
                                                                                                    "content": "here"}],
                              "tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": True, "max_tokens": 4}),
    ("/v1/responses", {"input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}], "instructions": "x",
                       "max_output_tokens": 4, "stream": True, "tools": [{"type": "function", **TOOL["function"]}]}),
    ("/api/chat", {"model": "m", "messages": SAY, "options": {"temperature": 0, "num_predict": 3, "seed": 4}, "format": SCHEMA}),
    ("/api/generate", {"model": "m", "prompt": "hi", "system": "s", "stream": False, "options": {"num_predict": 3, "stop": ["x"]}}),
    ("/api/show", {"model": "m"}), ("/apply-template", {"messages": SAY, "tools": [TOOL]}),
    ("/tokenize", {"content": "Once upon a time", "add_special": True}), ("/detokenize", {"tokens": [5, 6, 7]}),
    ("/infill", {"input_prefix": "a", "input_suffix": "b", "n_predict": 2}),
    ("/health", None), ("/v1/models", None), ("/v1/models/x", None), ("/props", None), ("/metrics", None), ("/api/tags", None),
]
RAW = ["\x01RAW%d\x01" % i for i in range(8)]  # stand for what json.dumps does not write
RAW_TEXT = [b"1e999", b"-1" + b"0" * 400, b"\"\xff\xfe\"", b"\"\\ud800\"", b"[" * 5000 + b"]" * 5000, b"{\"a\":" * 3000 + b"1" + b"}" * 3000, b"NaN",
            b"\"\\u0000\xc0\x80\""]
VALUES = [None, True, False, -1, 0, 1, 2, 1.5, -1e308, 1e308, 2**31, -2**31 - 1, 2**63 - 1, 2**63, -2**63, 2**64, "", "x", "x" * 3000, "\0", "é\U0001f600",
          "<|im_start|>", "{%", "root ::= root", "\\", [], {}, [[]], [None], [1, "a"], {"": None}, ["x"] * 300, list(range(200)),
          {"type": "object", "$ref": "#"}, {"anyOf": [{}] * 50}, {"pattern": "(a+)+$"}, *RAW]
WORDS = [b"\r\n", b"\n", b"\0", b"\xff", b"%00", b"%", b"../", b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"Expect: 100-continue\r\n",
         b"Host: x\r\n", b" folded\r\n", b":", b"{", b"}", b"[", b"\"", b"\\u", b"9" * 30, b"-", b"e", b"HTTP/1.0", b"0\r\n\r\n", b"\t", b";", b"?a=b&", b"#"]


def nodes(value, found):
    """All (container, key) of a JSON value."""
    todo = [value]
    while todo:
        v = todo.pop()
        for key in list(v) if isinstance(v, dict) else range(len(v)) if isinstance(v, list) else ():
            found.append((v, key))
            todo.append(v[key])
    return found


def mutate_json(r, body):
    body = json.loads(json.dumps(body))
    for _ in range(r.choice((1, 1, 2, 4))):
        found = nodes(body, [])
        if not found:
            break
        container, key = r.choice(found)
        what = r.randrange(6)
        if what == 0:
            del container[key]
        elif what == 1:
            other, name = r.choice(found)
            try:
                container[key] = json.loads(json.dumps(other[name]))
            except (KeyError, IndexError):
                pass
        elif what == 2 and isinstance(container[key], str):
            text = container[key]
            at = r.randint(0, len(text))
            container[key] = text[:at] + r.choice(("\0", "\"", "{{", "<|im_end|>", "\ud83d\ude00", "]", "é", "|")) + text[at:]
        else:
            container[key] = copy.deepcopy(r.choice(VALUES))
    data = json.dumps(body).encode("utf-8", "surrogatepass")
    for name, raw in zip(RAW, RAW_TEXT):
        data = data.replace(json.dumps(name).encode(), raw)
    return data


def mutate_bytes(r, data, times):
    data = bytearray(data)
    for _ in range(times):
        at, what = r.randint(0, len(data)), r.randrange(5)
        if what == 0:
            data[at:at] = r.choice(WORDS)
        elif what == 1:
            del data[at:at + r.randint(1, 8)]
        elif what == 2 and at < len(data):
            data[at] = r.randrange(256)
        elif what == 3:
            data[at:at] = data[at:at + r.randint(1, 40)]
        elif r.random() < 0.3:
            del data[at:]
    return bytes(data)


def chunks(r, body):
    out = b""
    while body:
        n = r.randint(1, len(body))
        size = r.choice((b"%x" % n, b"%X;a=b" % n, b"0%x" % n, b"%x" % n, b"%x" % n, b"ffffffffffffffff1", b"-1", b"%x" % (n + 1)))
        out += size + b"\r\n" + body[:n] + b"\r\n"
        body = body[n:]
    return out + r.choice((b"0\r\n\r\n", b"0\r\n\r\n", b"0\r\nX: y\r\n\r\n", b""))


def one(r):
    """The bytes of one request."""
    path, body = r.choice(VALID)
    method = "POST" if body is not None else "GET"
    data = b""
    if body is not None:
        data = mutate_json(r, body) if r.random() < 0.7 else json.dumps(body).encode()
        if r.random() < 0.2:
            data = mutate_bytes(r, data, r.choice((1, 3, 10)))
    if r.random() < 0.05:
        method = r.choice(("GET", "PUT", "HEAD", "OPTIONS", "DELETE", "X" * 100, "post", ""))
    if r.random() < 0.05:
        path = r.choice((path + "/", "/" + path, path + "?" + "a=b&" * 100, "/" + "x" * 9000, "%2f%00", "*", "http://localhost" + path, path.upper()))
    head = [f"{method} {path} {r.choice(('HTTP/1.1',) * 20 + ('HTTP/1.0', 'HTTP/2.0', 'HTTP/1.1 ', 'X'))}", "Host: localhost"]
    if r.random() < 0.85:
        head.append("Connection: close")
    if data and r.random() < 0.1:
        head.append("Transfer-Encoding: chunked")
        data = chunks(r, data)
    elif data:
        wrong = (len(data) + 7, len(data) - 1, -1, "0x10", "+5", "", 2**64, 2**31, "5, 6")
        head.append(f"Content-Length: {r.choice(wrong) if r.random() < 0.06 else len(data)}")
    if r.random() < 0.1:
        head += r.choices(head[1:] + ["Expect: 100-continue", "X" * 200 + ": y", "Upgrade: h2c", "Content-Encoding: gzip", "A: " + "b" * 20000, "no colon",
                                      " folded", "Origin: http://x", "Authorization: Bearer \xff", "Range: bytes=0-1"], k=r.choice((1, 2, 120)))
    text = "\r\n".join(head).encode("latin-1") + b"\r\n\r\n"
    if r.random() < 0.08:
        text = mutate_bytes(r, text, r.choice((1, 4)))
    return text + data


def send(host, port, r, data):
    """Sends them; returns the statuses and the seconds until the last byte of an answer, and until the end once the client has
    said that no more will come; b"" where the client left at once."""
    begin, got, last = time.monotonic(), b"", 0.0
    with socket.create_connection((host, port), timeout=10) as s:
        try:
            for piece in (data,) if r.random() < 0.8 else (data[:len(data) // 2], data[len(data) // 2:]):
                s.sendall(piece)
                time.sleep(0.01 if len(piece) < len(data) else 0)
            if r.random() < 0.03:
                return [], 0.0, 0.0, b""
            s.settimeout(1.5)
            while True:
                try:
                    piece = s.recv(65536)
                except socket.timeout:
                    if begin is None:
                        raise
                    s.shutdown(socket.SHUT_WR)
                    began, begin = time.monotonic(), None
                    s.settimeout(10)
                    continue
                if not piece:
                    break
                got += piece
                last = time.monotonic() - begin if begin else last
        except OSError as e:
            if isinstance(e, socket.timeout):
                return [], last, 10.0, got
    end = time.monotonic() - began if begin is None else 0.0
    return [int(x) for x in re.findall(rb"HTTP/1\.[01] (\d{3}) ", got)], last, end, got


def run(host, port, seed, n, found):
    """Sends n requests; appends (statuses, seconds to the answer, seconds to the end, request, answer) of each to found."""
    r = random.Random(seed)
    for _ in range(n):
        data = b"".join(one(r) for _ in range(r.choice((1,) * 12 + (2, 5))))
        try:
            found.append((*send(host, port, r, data), data))
        except OSError as e:
            found.append(([], 0.0, 10.0, repr(e).encode(), data))
