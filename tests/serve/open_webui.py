#!/usr/bin/env python3
"""The requests that Open WebUI 0.12 sends to an OpenAI and to an Ollama connection, and the answers read as its code reads them:
open_webui.py GPURUN"""

import datetime
import http.client
import json
import pathlib
import re
import sys
import tempfile

from served import LIMIT, Served
import generate

KEY = "a-key"
HISTORY = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Where is the ball?"}]
TITLE = """### Task:
Generate a concise title summarizing the chat history.
### Output:
JSON format: { "title": "your concise title here" }
### Chat History:
<chat_history>
USER: Where is the ball?
ASSISTANT: It is there.
</chat_history>"""
PARAMS = {"temperature": 0, "max_tokens": 12, "top_p": 0.9, "seed": 3, "stop": ["\n\n\n"], "frequency_penalty": 0.1}


class Connection:
    """One of the settings: an address and a key."""

    def __init__(self, server):
        self.host, self.port, self.key = server.host, server.port, KEY

    def send(self, method, path, body=None):
        c = http.client.HTTPConnection(self.host, self.port, timeout=LIMIT)
        headers = {"Content-Type": "application/json", "Accept": "*/*", "Accept-Encoding": "gzip, deflate"}
        headers |= {"Authorization": f"Bearer {self.key}"} if self.key else {}
        c.request(method, path, json.dumps(body) if body is not None else None, headers)
        return c.getresponse()

    def json(self, method, path, body=None, status=200):
        """aiohttp's response.json(), which refuses other types of content."""
        r = self.send(method, path, body)
        assert r.headers.get_content_type() == "application/json", (path, r.headers.items())
        answer = json.loads(r.read())
        assert r.status == status, (path, r.status, answer)
        return answer

    def lines(self, path, body, kind):
        r = self.send("POST", path, body)
        assert r.status == 200 and kind in r.headers["Content-Type"], (r.status, r.headers.items())
        return [line.decode() for line in r if line.strip()]


def read_stream(lines):
    """Text, reasoning, calls, usage and reason, as utils/middleware.py gathers them."""
    text, reasoning, calls, usage, reason = "", "", {}, {}, None
    for line in lines:
        if line.startswith(":"): # says that the server still computes
            continue
        assert line.startswith("data:"), line
        data = line.removeprefix("data:").strip()
        if data == "[DONE]":
            continue
        data = json.loads(data)
        assert "error" not in data, data
        usage = data.get("usage") or usage
        if not data.get("choices"):
            continue
        choice = data["choices"][0]
        reason = choice.get("finish_reason") or reason
        delta = choice.get("delta", {})
        for call in delta.get("tool_calls") or []:
            known = calls.setdefault(call["index"], {"id": call.get("id"), "name": "", "arguments": ""})
            known["name"] = call.get("function", {}).get("name") or known["name"]
            known["arguments"] += call.get("function", {}).get("arguments") or ""
        text += delta.get("content") or ""
        reasoning += delta.get("reasoning_content") or ""
    assert lines[-1].strip() == "data: [DONE]"
    return text, reasoning, calls, usage, reason


# ---- an OpenAI connection ----

def test_models(c):
    answer = c.json("GET", "/v1/models")
    assert isinstance(answer["data"], list) and "error" not in answer
    for model in answer["data"]:
        assert model.get("id") or model.get("name")
        assert isinstance(model.get("name", model["id"]), str)  # null is no name
    c.key = "another"
    assert "error" in c.json("GET", "/v1/models", status=401)
    c.key = KEY


def test_chat(c):
    (model,) = c.json("GET", "/v1/models")["data"]
    ask = {"stream": True, "model": model["id"], "messages": HISTORY, **PARAMS}
    text, _, calls, usage, reason = read_stream(c.lines("/v1/chat/completions", ask | {"stream_options": {"include_usage": True}}, "text/event-stream"))
    assert text and not calls and reason in ("stop", "length")
    assert usage["prompt_tokens"] > 0 and usage["completion_tokens"] == 12 and usage["total_tokens"] == usage["prompt_tokens"] + 12
    whole = c.json("POST", "/v1/chat/completions", ask | {"stream": False})
    assert len(whole["choices"]) == 1 and whole["choices"][0]["message"]["content"] == text and whole["usage"]["total_tokens"]
    assert not read_stream(c.lines("/v1/chat/completions", ask, "text/event-stream"))[3]  # usage where it is asked for alone
    parts = [{"role": "user", "content": [{"type": "text", "text": "Where is the ball?"}]}]
    assert read_stream(c.lines("/v1/chat/completions", ask | {"messages": HISTORY[:1] + parts}, "text/event-stream"))[0] == text


def test_tools(c):
    """A call, and what follows its result; the model does not call by itself."""
    ask = {"stream": True, "model": "m", "messages": HISTORY, "tools": generate.TOOLS, "stream_options": {"include_usage": True}, "seed": 1,
           "max_tokens": 300}
    _, _, calls, usage, reason = read_stream(c.lines("/v1/chat/completions", ask | {"tool_choice": "required"}, "text/event-stream"))
    assert reason == "tool_calls" and usage["completion_tokens"]
    said = [{"id": call["id"], "index": i, "type": "function", "function": {"name": call["name"], "arguments": call["arguments"]}}
            for i, call in calls.items()]
    assert said and all(call["id"] and json.loads(call["function"]["arguments"])["place"] for call in said)
    back = [{"role": "assistant", "content": "", "tool_calls": said}]
    back += [{"role": "tool", "tool_call_id": call["id"], "content": [{"type": "input_text", "text": "it is there"}]} for call in said]
    for message in back[1:]:
        message["content"] = "".join(part["text"] for part in message["content"])
    assert read_stream(c.lines("/v1/chat/completions", ask | {"messages": HISTORY + back, "max_tokens": 4}, "text/event-stream"))[4]


def test_tasks(c):
    """Title, tags, follow-ups and queries are chats of one message without a stream."""
    ask = {"model": "m", "messages": [{"role": "user", "content": TITLE}], "stream": False, "max_tokens": 8}
    answer = c.json("POST", "/v1/chat/completions", ask)
    assert len(answer["choices"]) == 1
    message = answer["choices"][0].get("message", {})
    assert isinstance(message.get("content") or message.get("reasoning_content", ""), str)


def test_continue(c):
    """What a connection of the provider llama.cpp sends when an answer is to go on; no word of it comes again."""
    messages = [*HISTORY, {"role": "assistant", "content": "The ball is"}]
    more = {"continue_final_message": True, "add_generation_prompt": False}
    prompt = c.json("POST", "/apply-template", {"messages": messages, **more})["prompt"]
    assert prompt.endswith("The ball is"), prompt
    ask = {"stream": True, "model": "m", "messages": messages, "temperature": 0, "max_tokens": 12, **more}
    text = read_stream(c.lines("/v1/chat/completions", ask, "text/event-stream"))[0]
    tokens = c.json("POST", "/tokenize", {"content": prompt})["tokens"]
    plain = c.json("POST", "/completion", {"prompt": tokens, "n_predict": 12, "temperature": 0})["content"]
    assert text and text.strip() == plain.strip(), (text, plain)


def test_refused(c):
    """An error is a JSON object also where a stream was asked for; the page shows its message."""
    for body in ({"messages": [{"role": "user", "content": "word " * 3000}]}, {"messages": []}):
        answer = c.json("POST", "/v1/chat/completions", {"stream": True, "model": "m", **body}, 400)
        assert answer["error"]["message"]


def test_embeddings(c):
    answer = c.json("POST", "/v1/embeddings", {"input": ["a cat", "a dog"], "model": "m"})
    vectors = [x["embedding"] for x in answer["data"]]
    assert len(vectors) == 2 and all(isinstance(x, float) for v in vectors for x in v)
    assert c.json("POST", "/api/embed", {"input": ["a cat", "a dog"], "model": "m", "truncate": True})["embeddings"] == vectors


# ---- an Ollama connection ----

def test_ollama_models(c):
    version = c.json("GET", "/api/version")["version"]
    assert tuple(map(int, re.sub(r"^v|-.*", "", version).split(".")))
    models = c.json("GET", "/api/tags")["models"]
    assert models and all(m["model"] and m.get("name") for m in models)
    loaded = json.loads(c.send("GET", "/api/ps").read()).get("models", [])  # none where there is no such route
    assert all(datetime.datetime.fromisoformat(m["expires_at"]) for m in loaded if "expires_at" in m)
    assert c.json("POST", "/api/show", {"model": models[0]["model"]})["capabilities"]


def test_ollama_chat(c):
    model = c.json("GET", "/api/tags")["models"][0]["model"]
    ask = {"model": model, "messages": HISTORY, "options": {"temperature": 0, "num_predict": 12, "seed": 3, "stop": ["\n\n\n"]}}
    text = ""
    for line in c.lines("/api/chat", ask | {"stream": True}, "ndjson"):
        data = json.loads(line)
        assert data.get("model") and isinstance(data.get("message", {}).get("content", ""), str)
        text += data.get("message", {}).get("content", "")
    assert data["done"] and data["eval_count"] and data["prompt_eval_count"] and data["total_duration"] >= data["eval_duration"] > 0
    assert c.json("POST", "/api/chat", ask | {"stream": False})["message"]["content"] == text
    tools = ask | {"stream": False, "tools": generate.TOOLS, "options": {"num_predict": 4}}
    assert "content" in c.json("POST", "/api/chat", tools)["message"]
    assert "error" in c.json("POST", "/api/chat", {"model": model, "messages": "Hi", "stream": True}, 400)


def main():
    with tempfile.TemporaryDirectory() as name:
        template = pathlib.Path(name) / "template"
        template.write_text(generate.TEMPLATE)
        words = [*generate.REF, "-c", "1024", "--embeddings", "--pooling", "mean", "--api-key", KEY, "--chat-template-file", str(template)]
        with Served(sys.argv[1], words) as s:
            for name, test in sorted(globals().items()):
                if name.startswith("test_"):
                    test(Connection(s))
                    print(name[5:])


main()
