#!/usr/bin/env python3
"""Texts of gpurun serve against those of gpurun run and gpurun template: generate.py GPURUN"""

import json
import math
import pathlib
import socket
import subprocess
import sys
import tempfile
import threading
import time

from served import LIMIT, Served

PROGRAM = sys.argv[1]
REF = ["--cpu-level", "ref", "-t", "2"]
PROMPT = "Once upon a time"
TEMPLATE = """{{ bos_token }}{% for t in tools or [] %}<tools>{{ t | tojson }}</tools>
{% endfor %}{% for m in messages %}[{{ m.role }}] {% if m.content %}{{ m.content }}{% endif %}{% for c in m.tool_calls or [] %}<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}
{% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}"""
TOOLS = [{"type": "function", "function": {"name": name, "description": "a test", "parameters": {
    "type": "object", "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 99}, "place": {"enum": ["here", "there"]}},
    "required": ["n", "place"], "additionalProperties": False}}} for name in ("move", "look")]
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Where is <|endoftext|> the ball?"}]


def run(*words):
    done = subprocess.run([PROGRAM, *words, "-q"], capture_output=True, timeout=LIMIT)
    assert done.returncode == 0, (words, done.stderr)
    return done.stdout.decode()


def text_of_run(prompt, n, *words):
    return json.loads(run("run", "-p", prompt, "-n", str(n), "--json", "--no-warmup", *REF, *words))["text"]


# ---- completions ----

def test_same_as_run(s):
    for n, words, fields in ((24, ["--temp", "0"], {"temperature": 0}),
                             (24, ["-s", "7"], {"seed": 7}),
                             (24, ["-s", "7", "--temp", "1.5", "--top-k", "9", "--repeat-penalty", "1.3"],
                              {"seed": 7, "temperature": 1.5, "top_k": 9, "repeat_penalty": 1.3}),
                             (16, ["-s", "3", "--mirostat", "2"], {"seed": 3, "mirostat": 2})):
        want = text_of_run(PROMPT, n, *words)
        assert want
        got = s.post("/v1/completions", {"prompt": PROMPT, "max_tokens": n, **fields})
        assert got["choices"][0]["text"] == want, (words, want, got)
        native = s.post("/completion", {"prompt": PROMPT, "n_predict": n, **fields})
        assert native["content"] == want, (words, want, native)


def test_self_extend(s):
    prompt = " ".join([PROMPT] * 70)
    for n, w in ((4, 64), (2, 32)):
        want = text_of_run(prompt, 24, "--temp", "0", "-c", "1024", "-gan", str(n), "-gaw", str(w))
        fields = {"temperature": 0, "self_extend": {"n": n, "w": w}}
        got = s.post("/v1/completions", {"prompt": prompt, "max_tokens": 24, **fields})
        assert got["choices"][0]["text"] == want and got["usage"]["prompt_tokens"] > 256, (n, w, got, want)
    plain = s.post("/v1/completions", {"prompt": prompt, "max_tokens": 24, "temperature": 0})
    assert plain["choices"][0]["text"] != want
    for value, param in ((7, ""), ([], ""), ({}, ".n"), ({"n": 0}, ".n"), ({"n": "4"}, ".n"), ({"n": 4, "w": 63}, ".w"), ({"n": 4, "w": 0}, ".w"),
                         ({"n": 4, "w": 1 << 30}, ".w"), ({"n": 1 << 30}, ".n"), ({"w": 64}, ".n")):
        for path in ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/completion"):
            body = {"prompt": PROMPT, "messages": MESSAGES, "input": "x", "max_tokens": 1, "self_extend": value}
            status, error = s.refused(path, body)
            assert status == 400 and error["param"] == "self_extend" + param, (path, value, error)


def context_shift():
    """Answers that go on beyond the context, side by side, as gpurun run has them with --context-shift."""
    with Served(PROGRAM, [*REF, "-c", "256", "-np", "2"]) as s:
        got = [{}, {}]
        settings = [(5, 0), (-1, 9)]

        def ask(i):
            keep, discard = settings[i]
            got[i] = s.post("/completion", {"prompt": PROMPT, "n_predict": 300, "temperature": 0, "ignore_eos": True,
                                            "context_shift": {"keep": keep, "discard": discard}})

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(2)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        for i, (keep, discard) in enumerate(settings):
            assert got[i]["truncated"] and got[i]["tokens_predicted"] == 300, got[i]
            if not discard:  # gpurun run discards half
                want = text_of_run(PROMPT, 300, "--temp", "0", "--ignore-eos", "-c", "256", "--context-shift", "--keep", str(keep))
                assert got[i]["content"] == want, (keep, got[i]["content"], want)
        plain = s.post("/completion", {"prompt": PROMPT, "n_predict": 300, "temperature": 0, "ignore_eos": True})
        assert not plain["truncated"] and plain["tokens_predicted"] < 256 and got[1]["content"].startswith(plain["content"])
        usage = s.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 300, "ignore_eos": True, "context_shift": {}})["usage"]
        assert usage["completion_tokens"] == 300 and usage["prompt_tokens"] == got[0]["tokens_evaluated"], usage
        for value, param in ((7, "context_shift"), ({"keep": -2}, "context_shift.keep"), ({"discard": "1"}, "context_shift.discard")):
            status, error = s.refused("/completion", {"prompt": PROMPT, "n_predict": 9, "context_shift": value})
            assert status == 400 and error["param"] == param, (value, error)
        for more in ({"n_predict": -1}, {"self_extend": {"n": 2, "w": 8}}, {"session": s.post("/v1/sessions", {})["id"]}):
            status, error = s.refused("/completion", {"prompt": PROMPT, "n_predict": 9, "context_shift": {}, **more})
            assert status == 400 and error["param"] == "context_shift", (more, error)


def test_usage(s):
    got = s.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 5, "temperature": 0, "model": "any"})
    ids = json.loads(run("tokenize", "-p", PROMPT, "--ids"))
    usage = got["usage"]
    assert usage["prompt_tokens"] == len(ids) and usage["completion_tokens"] == 5, (usage, ids)
    assert usage["total_tokens"] == len(ids) + 5 and got["model"] == "any" and got["object"] == "text_completion"
    assert got["choices"][0]["finish_reason"] == "length"
    assert got["timings"]["predicted_n"] == 5 and got["timings"]["prompt_n"] + got["timings"]["cache_n"] == len(ids)
    same = s.post("/v1/completions", {"prompt": ids, "max_tokens": 5, "temperature": 0})
    assert same["choices"][0]["text"] == got["choices"][0]["text"]


def test_streams(s):
    body = {"prompt": PROMPT, "max_tokens": 20, "seed": 5, "n": 3, "logprobs": 2}
    whole = s.post("/v1/completions", body)
    events = s.stream("/v1/completions", {**body, "stream": True, "stream_options": {"include_usage": True}})
    assert events[-1] is None and events[-2]["choices"] == [] and events[-2]["usage"] == whole["usage"] | {
        "prompt_tokens_details": events[-2]["usage"]["prompt_tokens_details"]}
    for i in range(3):
        parts = [c for e in events[:-2] for c in e["choices"] if c["index"] == i]
        want = whole["choices"][i]
        assert "".join(p["text"] for p in parts) == want["text"]
        assert [p["finish_reason"] for p in parts][:-1] == [None] * (len(parts) - 1)
        assert parts[-1]["finish_reason"] == want["finish_reason"]
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            assert sum((p["logprobs"][name] for p in parts if p["logprobs"]), []) == want["logprobs"][name], name
    texts = {c["text"] for c in whole["choices"]}
    assert len(texts) > 1, "three seeds, one text"
    alone = s.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 20, "seed": 6})
    assert alone["choices"][0]["text"] == whole["choices"][1]["text"]


def test_stream_headers(s):
    """Nothing between server and client keeps a stream, which each header says once."""
    c = s.connect()
    c.request("POST", "/completion", json.dumps({"prompt": PROMPT, "n_predict": 1, "stream": True}))
    headers = c.getresponse().headers
    c.close()
    assert headers.get_all("Cache-Control") == ["no-cache"] and headers.get_all("X-Accel-Buffering") == ["no"], headers.items()


def test_prompts(s):
    prompts = [PROMPT, "The cat", "There was a"]
    all_of = s.post("/v1/completions", {"prompt": prompts, "max_tokens": 8, "temperature": 0, "n": 2})
    assert [c["index"] for c in all_of["choices"]] == list(range(6))
    for i, p in enumerate(prompts):
        one = s.post("/v1/completions", {"prompt": p, "max_tokens": 8, "temperature": 0, "echo": True})
        assert one["choices"][0]["text"] == p + all_of["choices"][2 * i]["text"] == p + all_of["choices"][2 * i + 1]["text"]
    listed = s.post("/completion", {"prompt": prompts, "n_predict": 8, "temperature": 0})
    assert [c["content"] for c in listed] == [c["text"] for c in all_of["choices"][::2]]


def test_stops(s):
    want = text_of_run(PROMPT, 40, "--temp", "0")
    stop = want[9:12]
    cut = want[:want.index(stop)]
    got = s.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 40, "temperature": 0, "stop": stop})
    assert got["choices"][0]["text"] == cut and got["choices"][0]["finish_reason"] == "stop", (got, cut)
    native = s.post("/completion", {"prompt": PROMPT, "n_predict": 40, "temperature": 0, "stop": ["@@@", stop]})
    assert native["content"] == cut and native["stop_type"] == "word" and native["stopping_word"] == stop, native
    events = s.stream("/completion", {"prompt": PROMPT, "n_predict": 40, "temperature": 0, "stop": [stop], "stream": True})
    assert "".join(e["content"] for e in events) == cut and events[-1]["stop"] and not any(e["stop"] for e in events[:-1])


def test_probabilities(s):
    got = s.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 6, "temperature": 0, "logprobs": 20})
    p = got["choices"][0]["logprobs"]
    assert len(p["tokens"]) == len(p["token_logprobs"]) == len(p["top_logprobs"]) == len(p["text_offset"]) == 6
    for token, logprob, top in zip(p["tokens"], p["token_logprobs"], p["top_logprobs"]):
        total = sum(math.exp(v) for v in top.values())
        assert 0.3 < total < 1 + 1e-5 and max(top.values()) == top[token] == logprob, (token, top)
    assert "".join(p["tokens"]) == got["choices"][0]["text"]
    native = s.post("/completion", {"prompt": PROMPT, "n_predict": 6, "temperature": 0, "n_probs": 3})
    listed = native["completion_probabilities"]
    assert [e["token"] for e in listed] == p["tokens"] and all(len(e["top_logprobs"]) == 3 for e in listed)
    assert all(math.isclose(e["logprob"], v, abs_tol=1e-5) for e, v in zip(listed, p["token_logprobs"]))


def test_prompt_probabilities(s):
    """The text's probabilities as a prompt are those it was generated with."""
    made = s.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 9, "temperature": 0, "logprobs": 1})
    text, n = made["choices"][0]["text"], len(made["choices"][0]["logprobs"]["tokens"])
    ids = json.loads(run("tokenize", "-p", PROMPT, "--ids"))
    native = s.post("/completion", {"prompt": ids, "n_predict": 9, "temperature": 0, "return_tokens": True})
    all_ids = ids + native["tokens"]
    for most in (0, 1):
        got = s.post("/v1/completions", {"prompt": all_ids, "max_tokens": most, "temperature": 0, "logprobs": 1, "echo": True})
        p = got["choices"][0]["logprobs"]
        assert len(p["tokens"]) == len(all_ids) + most, (most, p)
        assert p["token_logprobs"][0] is None and p["top_logprobs"][0] is None
        have = p["token_logprobs"][len(ids):len(all_ids)]
        want = made["choices"][0]["logprobs"]["token_logprobs"]
        assert len(have) == n and all(math.isclose(a, b, abs_tol=1e-4) for a, b in zip(have, want)), (have, want)
        assert got["choices"][0]["text"].endswith(text) or most


    text = PROMPT + made["choices"][0]["text"]  # offsets are in the text, which has no BOS
    p = s.post("/v1/completions", {"prompt": text, "max_tokens": 1, "temperature": 0, "logprobs": 1, "echo": True})["choices"][0]["logprobs"]
    assert p["text_offset"][:2] == [0, 0] and p["text_offset"][-1] == len(text), p["text_offset"]
    assert all(text.startswith(token, at) for token, at in list(zip(p["tokens"], p["text_offset"]))[1:-1]), p


def test_last_token(s):
    """The token that ends a text has a probability too, as evaluations of a continuation count on it."""
    only = s.post("/completion", {"prompt": PROMPT, "n_predict": 400, "temperature": 0, "stop": []})
    assert only["stop_type"] == "eos", only
    p = s.post("/v1/completions", {"prompt": PROMPT + only["content"], "max_tokens": 1, "temperature": 0, "logprobs": 1, "echo": True})
    p = p["choices"][0]["logprobs"]
    ids = json.loads(run("tokenize", "-p", PROMPT + only["content"], "--ids"))
    assert len(p["tokens"]) == len(p["token_logprobs"]) == len(p["text_offset"]) == len(ids) + 1, p


def test_grammars(s):
    schema = {"type": "object", "properties": {"a": {"type": "integer", "maximum": 9, "minimum": 0}, "b": {"enum": ["x", "y"]}},
              "required": ["a", "b"], "additionalProperties": False}
    for fields in ({"json_schema": schema}, {"response_format": {"type": "json_schema", "json_schema": {"name": "t", "schema": schema}}},
                   {"response_format": {"type": "json_object", "schema": schema}}):
        got = s.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 200, "seed": 2, **fields})["choices"][0]
        value = json.loads(got["text"])
        assert set(value) == {"a", "b"} and value["b"] in "xy" and 0 <= value["a"] <= 9, got
    got = s.post("/completion", {"prompt": PROMPT, "n_predict": 50, "grammar": 'root ::= "yes" | "no"'})
    assert got["content"] in ("yes", "no"), got
    banned = s.post("/completion", {"prompt": PROMPT, "n_predict": 1, "temperature": 0, "return_tokens": True})["tokens"][0]
    for bias in ({str(banned): -100}, [[banned, False]]):
        other = s.post("/completion", {"prompt": PROMPT, "n_predict": 1, "temperature": 0, "return_tokens": True, "logit_bias": bias})
        assert other["tokens"][0] != banned


def test_refusals(s):
    good = {"prompt": PROMPT, "max_tokens": 1, "messages": MESSAGES}
    for path in ("/v1/completions", "/v1/chat/completions"):
        for name, values in {"max_tokens": ["1", 1.5, -3, 2**40], "temperature": ["hot", 1e9], "n": [0, 17, "2"], "stream": [1, "yes"],
                             "stop": [7, [""], ["x"] * 17, "y" * 257], "top_p": [-0.1, 1.1], "seed": ["x", 0.5],
                             "logit_bias": [3, {"x": 1}, {"999999999": 1}], "json_schema": [{"type": "nothing"}], "grammar": ["root ::= x", 7],
                             "response_format": ["json", {"type": "xml"}], "stream_options": [1], "repeat_last_n": [1 << 30],
                             "dry_sequence_breakers": ["x", [1]], "samplers": [["no"], 7], "model": [7, "m" * 1025]}.items():
            for value in values:
                status, error = s.refused(path, {**good, name: value})
                assert status == 400 and error["param"].startswith(name) and error["type"] == "invalid_request_error", (path, name, value, error)
    for prompt in (None, 7, [], [[]], [-1], [1 << 30], [1, "x"], ["x"] * 129, "word " * 3000):
        status, error = s.refused("/v1/completions", {"prompt": prompt, "max_tokens": 1})
        assert status == 400 and error["param"] == "prompt", (str(prompt)[:40], error)
    for messages in (None, [], "x", [7], [{"content": "x"}], [{"role": "user", "content": 7}], [{"role": "user"}],
                     [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
                     [{"role": "assistant", "content": None, "tool_calls": [{}]}]):
        status, error = s.refused("/v1/chat/completions", {"messages": messages, "max_tokens": 1})
        assert status == 400 and error["param"].startswith("messages"), (messages, error)
    assert s.refused("/v1/completions", {"prompt": "word " * 3000})[1]["code"] == "context_length_exceeded"
    assert s.refused("/v1/chat/completions", {**good, "top_logprobs": 2})[1]["param"] == "top_logprobs"
    assert s.refused("/v1/chat/completions", {**good, "tool_choice": "required"})[1]["param"] == "tool_choice"
    assert s.refused("/v1/responses", {"input": "x", "previous_response_id": "r"})[1]["param"] == "previous_response_id"
    assert s.refused("/infill", {"input_prefix": "a", "input_suffix": "b"})[0] == 501
    assert s.refused("/v1/completions", {**good, "suffix": "x"})[1]["param"] == "suffix"
    # a grammar that leaves no token, calls with too many values: faults of the request
    assert s.refused("/completion", {"prompt": "x", "grammar": 'root ::= "yes"', "ignore_eos": True})[0] == 400
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"a": [' + "{}," * 60000 + "{}]}"}}
    status, error = s.refused("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [call]}]})
    assert status == 400 and "tool_calls" in error["param"], error
    # lists of tokens may be longer than other lists
    assert s.post("/detokenize", {"tokens": [5] * 300000})["content"]
    for tokens in ["a"] * 100001, [5] * 800001, [[]] * 60000:
        status, error = s.refused("/detokenize", {"tokens": tokens})
        assert status == 400 and "100000 values" in error["message"], error
    # an assistant who said nothing
    chat(s, messages=[MESSAGES[-1], {"role": "assistant", "content": None}, MESSAGES[-1]], max_tokens=1)
    s.post("/v1/completions", {**good, "max_tokens": None, "n_predict": 1, "user": "u", "unknown": {}})


# ---- chats ----

def chat(s, **fields):
    return s.post("/v1/chat/completions", {"messages": MESSAGES, "temperature": 0, "max_tokens": 24, **fields})


def test_chat_prompt(s, folder):
    for messages in (MESSAGES, MESSAGES + [{"role": "assistant", "content": None, "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "look", "arguments": {"n": 1}}}]}, {"role": "tool", "content": "<tools>"}]):
        path = folder / "messages.json"
        path.write_text(json.dumps({"messages": messages, "add_generation_prompt": True}))
        ids = json.loads(run("template", "--messages", str(path), "--chat-template-file", str(folder / "template"), "--ids"))
        want = s.post("/v1/completions", {"prompt": ids, "temperature": 0, "max_tokens": 24})
        sent = json.loads(json.dumps(messages))
        for m in sent:
            m["content"] = m["content"] and [{"type": "text", "text": m["content"]}]
            for c in m.get("tool_calls", []):
                c["function"]["arguments"] = json.dumps(c["function"]["arguments"])
        got = chat(s, messages=sent)
        assert got["usage"]["prompt_tokens"] == len(ids), (got["usage"], len(ids))
        assert got["choices"][0]["message"]["content"].strip() == want["choices"][0]["text"].strip(), (got, want)


def test_chat_streams(s):
    for fields in ({}, {"n": 2, "seed": 4, "temperature": 1}, {"logprobs": True, "top_logprobs": 2}):
        whole = chat(s, **fields)
        events = s.stream("/v1/chat/completions", {"messages": MESSAGES, "temperature": 0, "max_tokens": 24, **fields, "stream": True})
        assert events[-1] is None and all(e["object"] == "chat.completion.chunk" for e in events[:-1])
        for i, want in enumerate(whole["choices"]):
            parts = [c for e in events[:-1] for c in e["choices"] if c["index"] == i]
            assert parts[0]["delta"] == {"role": "assistant", "content": ""} and parts[-1]["delta"] == {}
            assert parts[-1]["finish_reason"] == want["finish_reason"] and not any(p["finish_reason"] for p in parts[:-1])
            assert "".join(p["delta"].get("content", "") for p in parts) == want["message"]["content"]
            if "logprobs" in fields:
                listed = sum((p["logprobs"]["content"] for p in parts if p["logprobs"]), [])
                assert listed == want["logprobs"]["content"] and len(listed[0]["top_logprobs"]) == 2
    usage = s.stream("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 3, "stream": True, "stream_options": {"include_usage": True}})[-2]
    assert usage["choices"] == [] and usage["usage"]["completion_tokens"] <= 3


def check_call(call):
    value = json.loads(call["function"]["arguments"])
    assert call["type"] == "function" and call["id"] and 1 <= value["n"] <= 99 and value["place"] in ("here", "there"), call


def test_tools(s):
    for choice, names in (("required", ("move", "look")), ({"type": "function", "function": {"name": "look"}}, ("look",))):
        fields = {"tools": TOOLS, "tool_choice": choice, "max_tokens": 300, "seed": 1, "temperature": 1, "parallel_tool_calls": False}
        whole = chat(s, **fields)["choices"][0]
        assert whole["finish_reason"] == "tool_calls" and whole["message"]["content"] is None, whole
        (call,) = whole["message"]["tool_calls"]
        check_call(call)
        assert call["function"]["name"] in names
        events = s.stream("/v1/chat/completions", {"messages": MESSAGES, **fields, "stream": True})
        deltas = [d for e in events[:-1] for c in e["choices"] for d in c["delta"].get("tool_calls", [])]
        assert [d["index"] for d in deltas] == [0] and deltas[0]["function"] == call["function"], (deltas, call)
        assert events[-2]["choices"][0]["finish_reason"] == "tool_calls"
    full = chat(s, tools=TOOLS, tool_choice="required", max_tokens=3)["choices"][0]
    assert full["finish_reason"] == "length" and "tool_calls" not in full["message"], full


def test_calls_not_wanted(s):
    """A call is text where the request has no tools."""
    call = '<tool_call>{"name": "look", "arguments": {"n": 1}}</tool_call>'
    forced = {"grammar": f"root ::= {json.dumps('I look. ' + call)}", "max_tokens": 100}
    for fields in ({}, {"tools": TOOLS, "tool_choice": "none"}):
        got = chat(s, **forced, **fields)["choices"][0]
        assert got["message"] == {"role": "assistant", "content": "I look. " + call} and got["finish_reason"] == "stop", got
        events = s.stream("/v1/chat/completions", {"messages": MESSAGES, **forced, **fields, "stream": True})
        assert "".join(c["delta"].get("content", "") for e in events[:-1] for c in e["choices"]) == "I look. " + call, events
    said = s.post("/v1/responses", {"input": "x", "grammar": forced["grammar"], "max_output_tokens": 100})["output"]
    assert len(said) == 1 and said[0]["content"][0]["text"] == "I look. " + call, said
    assert s.post("/api/chat", {"messages": MESSAGES, "stream": False, "grammar": forced["grammar"]})["message"]["content"] == "I look. " + call


def test_chat_formats(s):
    got = chat(s, response_format={"type": "json_schema", "json_schema": {"schema": {"enum": ["red", "blue"]}}}, temperature=1)
    assert json.loads(got["choices"][0]["message"]["content"]) in ("red", "blue")
    begun = MESSAGES + [{"role": "assistant", "content": "The ball is"}]
    assert chat(s, messages=begun, continue_final_message=True)["usage"]["prompt_tokens"] < chat(s, messages=begun)["usage"]["prompt_tokens"]
    tokens = {"messages": MESSAGES, "chat_template_kwargs": {"bos_token": "x"}}
    assert s.refused("/v1/chat/completions", tokens)[1]["param"] == "chat_template_kwargs"
    names = chat(s, chat_template_kwargs={"messages": [], "tools": TOOLS})
    assert names["usage"]["prompt_tokens"] == chat(s)["usage"]["prompt_tokens"]


def test_reasoning(s):
    forced = {"grammar": 'root ::= "<think>\\na plan\\n</think>\\n\\nan answer"', "max_tokens": 60}
    for word, reasoning, text in (("auto", "a plan", "an answer"), ("hidden", "", "an answer"),
                                  ("none", "", "<think>\na plan\n</think>\n\nan answer")):
        message = chat(s, **forced, reasoning_format=word)["choices"][0]["message"]
        assert message["content"] == text and message.get("reasoning_content", "").strip() == reasoning, (word, message)
        events = s.stream("/v1/chat/completions", {"messages": MESSAGES, **forced, "reasoning_format": word, "stream": True})
        deltas = [c["delta"] for e in events[:-1] for c in e["choices"]]
        assert "".join(d.get("content", "") for d in deltas) == text
        assert "".join(d.get("reasoning_content", "") for d in deltas) == message.get("reasoning_content", "")
    assert s.refused("/v1/chat/completions", {"messages": MESSAGES, "reasoning_format": "x"})[1]["param"] == "reasoning_format"
    thought = s.post("/api/chat", {"messages": MESSAGES, "stream": False, "grammar": forced["grammar"]})["message"]
    assert thought["content"] == "an answer" and thought["thinking"].strip() == "a plan", thought


# ---- other forms ----

def test_responses(s):
    want = chat(s)["choices"][0]["message"]["content"]
    body = {"input": MESSAGES[1]["content"], "instructions": MESSAGES[0]["content"], "temperature": 0, "max_output_tokens": 24}
    got = s.post("/v1/responses", body)
    assert got["object"] == "response" and got["output"][0]["content"][0]["text"] == want, (got, want)
    listed = s.post("/v1/responses", {**body, "instructions": None, "input": [{**m, "type": "message"} for m in MESSAGES]})
    assert listed["output"][0]["content"] == got["output"][0]["content"] and listed["usage"]["input_tokens"] == got["usage"]["input_tokens"]
    events = s.stream("/v1/responses", {**body, "stream": True})
    assert [e["sequence_number"] for e in events] == list(range(len(events)))
    assert events[0]["type"] == "response.created" and events[-1]["type"] in ("response.completed", "response.incomplete")
    assert "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta") == want
    assert events[-1]["response"]["output"][0]["content"] == got["output"][0]["content"]
    tool = {**TOOLS[0]["function"], "type": "function"}
    called = s.post("/v1/responses", {**body, "tools": [tool], "tool_choice": "required", "max_output_tokens": 300, "parallel_tool_calls": False})
    assert called["output"][1]["type"] == "function_call" and json.loads(called["output"][1]["arguments"])["place"], called
    # a second turn: what was said and called is one message, as in a chat
    said, calls, results = {"type": "message", "role": "assistant", "content": ""}, [], []
    for n in (1, 2):
        calls.append({"type": "function_call", "call_id": f"c{n}", "name": "move", "arguments": json.dumps({"n": n, "place": "here"})})
        results.append({"type": "function_call_output", "call_id": f"c{n}", "output": f"done {n}"})
    turn = s.post("/v1/responses", {**body, "tools": [tool], "input": [{**MESSAGES[1]}, said, *calls, *results]})
    messages = [*MESSAGES, {"role": "assistant", "content": None, "tool_calls": [
        {"id": c["call_id"], "type": "function", "function": {"name": "move", "arguments": c["arguments"]}} for c in calls]},
        *({"role": "tool", "tool_call_id": r["call_id"], "content": r["output"]} for r in results)]
    same = chat(s, messages=messages, tools=TOOLS[:1])
    assert turn["usage"]["input_tokens"] == same["usage"]["prompt_tokens"], (turn, same)


def test_ollama(s):
    want = chat(s)["choices"][0]["message"]["content"]
    body = {"model": "m", "messages": MESSAGES, "options": {"temperature": 0, "num_predict": 24}}
    events = s.stream("/api/chat", body)
    assert "".join(e["message"]["content"] for e in events) == want and [e["done"] for e in events] == [False] * (len(events) - 1) + [True]
    whole = s.post("/api/chat", {**body, "stream": False})
    assert whole["message"]["content"] == want and whole["eval_count"] > 0 and whole["done_reason"] in ("stop", "length")
    text = text_of_run(PROMPT, 24, "--temp", "0")
    raw = s.post("/api/generate", {"model": "m", "prompt": PROMPT, "raw": True, "stream": False, "options": body["options"]})
    assert raw["response"] == text
    said = s.post("/api/generate", {"model": "m", "prompt": MESSAGES[1]["content"], "system": MESSAGES[0]["content"], "stream": False,
                                    "options": body["options"]})
    assert said["response"] == want
    zeros = [{"role": "system", "content": "Be\0 brief."}, {"role": "user", "content": "Where\0 is the ball?"}]
    said = s.post("/api/generate", {"prompt": zeros[1]["content"], "system": zeros[0]["content"], "stream": False})
    assert said["prompt_eval_count"] == chat(s, messages=zeros)["usage"]["prompt_tokens"], said
    assert s.get("/api/tags")[1]["models"][0]["name"] and s.get("/api/version")[1]["version"]
    assert "completion" in s.post("/api/show", {"model": "m"})["capabilities"]
    # nothing to answer: the model is to be loaded, and it is
    for path, empty, rest in (("/api/generate", ({}, {"prompt": ""}, {"prompt": None}, {"prompt": "", "raw": True}), {"response": ""}),
                              ("/api/chat", ({}, {"messages": []}, {"messages": None}), {"message": {"role": "assistant", "content": ""}})):
        for fields in empty:
            for stream in ({}, {"stream": False}, {"stream": True}):
                got = s.post(path, {"model": "m", **fields, **stream})
                assert got.pop("created_at") and got == {"model": "m", "done": True, "done_reason": "load", **rest}, (path, fields, got)
            for time, reason in ((0, "unload"), ("0", "unload"), ("0s", "unload"), (0.0, "unload"), (5, "load"), (-1, "load"), ("10m", "load"), (None, "load")):
                got = s.post(path, {"model": "m", **fields, "keep_alive": time})
                assert got.pop("created_at") and got == {"model": "m", "done": True, "done_reason": reason, **rest}, (path, fields, time, got)
    assert s.post("/api/chat", {**body, "stream": False, "keep_alive": 0})["message"]["content"] == want  # it is still there


def test_ollama_errors(s):
    """An error of Ollama's routes is a text."""
    for path, body, status, word in (("/api/chat", {"messages": "x"}, 400, "messages"), ("/api/generate", {"prompt": 1}, 400, "prompt"),
                                     ("/api/chat", {"messages": MESSAGES, "options": {"temperature": "hot"}}, 400, "temperature"),
                                     ("/v1/api/chat", {"messages": MESSAGES, "stream": "x"}, 400, "stream"), ("/api/nothing", {}, 404, "path"),
                                     ("/api/embed", {"input": "x"}, 501, "--embeddings"), ("/api/tags", {}, 405, "Allow")):
        got, error = s.refused(path, body)
        assert got == status and isinstance(error, str) and word in error, (path, body, got, error)


def test_steps(s):
    """Each step is in the histogram of what it has, and so are its tokens."""
    def read():
        return {line.split()[0]: float(line.split()[1]) for line in s.get("/metrics")[1].splitlines() if line.startswith("gpurun:")}

    before = read()
    usage = s.post("/v1/completions", {"prompt": [7, 5, 9, 11], "max_tokens": 6, "ignore_eos": True})["usage"]
    end = time.monotonic() + LIMIT
    while (after := read())["gpurun:batch_tokens_sum"] - before["gpurun:batch_tokens_sum"] < 9 and time.monotonic() < end:
        time.sleep(0.01)
    more = {name: after[name] - before.get(name, 0) for name in after}
    assert usage["prompt_tokens"] == 4 and usage["completion_tokens"] == 6, usage
    counts = [more[f'gpurun:step_seconds_count{{phase="{phase}"}}'] for phase in ("prompt", "decode", "mixed")]
    assert counts == [1, 5, 0] and more["gpurun:steps_total"] == 6, more
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    assert more["gpurun:batch_tokens_count"] == 6 and more["gpurun:batch_tokens_sum"] == 4 - cached + 5, (more, usage)
    assert more['gpurun:batch_tokens_bucket{le="1"}'] == 5 and more['gpurun:batch_tokens_bucket{le="4"}'] == 6, more
    assert more['gpurun:step_seconds_bucket{phase="decode",le="+Inf"}'] == 5
    total = sum(after[f'gpurun:step_seconds_sum{{phase="{phase}"}}'] for phase in ("prompt", "decode", "mixed"))
    assert math.isclose(total, after["gpurun:step_seconds_total"], rel_tol=1e-6)


# ---- clients that go ----

def test_gone(s):
    """A client that hangs up: its texts, of 1,019 steps, end after few more."""
    for stream in (True, False):
        body = json.dumps({"prompt": PROMPT, "max_tokens": -1, "ignore_eos": True, "stream": stream, "n": 4, "logit_bias": {"0": -100}})
        c = socket.create_connection((s.host, s.port), LIMIT)
        c.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: {s.host}:{s.port}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        end = time.monotonic() + LIMIT
        while not s.requests():
            assert time.monotonic() < end, "the request does not begin"
        before = s.metric("gpurun:steps_total")
        c.close()
        while s.requests():
            assert time.monotonic() < end, f"{s.requests()} texts are left"
            time.sleep(0.02)
        more = s.metric("gpurun:steps_total") - before
        assert more < 100, f"{more} steps after a client has gone"


def ways():
    """Templates that add texts get texts, where others get null and objects."""
    template = "{% for m in messages %}{{ '[' + m.content + ']' }}{% for c in m.tool_calls or [] %}{{ c.function.arguments + ';' }}{% endfor %}{% endfor %}"
    with Served(PROGRAM, [*REF, "--chat-template", template]) as s:
        call = {"type": "function", "function": {"name": "f", "arguments": '{"n": 1}'}}
        messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
        assert s.post("/apply-template", {"messages": messages})["prompt"] == '[a][]{"n": 1};'
        s.post("/v1/chat/completions", {"messages": messages, "max_tokens": 1})


def overload():
    """More texts than may wait are refused, without harm to others; an end of the server ends a stream with a reason."""
    with Served(PROGRAM, [*REF, "-np", "1", "-c", "256", "--queue", "2", "--metrics", "--drain", "0"]) as s:
        body = {"prompt": PROMPT, "max_tokens": 2, "n": 8}
        c = s.connect()
        c.request("POST", "/v1/completions", json.dumps(body))
        r = c.getresponse()
        assert r.status == 429 and r.headers["Retry-After"] and json.loads(r.read())["error"]["message"], r.status
        end = time.monotonic() + LIMIT
        while s.requests() and time.monotonic() < end:
            time.sleep(0.02)
        s.post("/v1/completions", {**body, "n": 1})
        c = s.connect()
        c.request("POST", "/v1/completions", json.dumps({**body, "n": 1, "max_tokens": 250, "ignore_eos": True, "stream": True}))
        r = c.getresponse()
        assert r.readline().startswith(b"data: {")
        s.process.terminate()
        rest = r.read().decode()
        assert "[DONE]" in rest or '"error"' in rest.strip().splitlines()[-1], rest[-300:]


def deadlines():
    """A request that takes too long ends with what there is; the next one is served."""
    with Served(PROGRAM, [*REF, "-np", "1", "-c", "4096", "--request-timeout", "1"]) as s:
        long = {"prompt": PROMPT, "max_tokens": -1, "ignore_eos": True}
        begin = time.monotonic()
        got = s.post("/v1/completions", long)
        assert got["choices"][0]["finish_reason"] == "length" and 0 < got["usage"]["completion_tokens"] < 4000, got
        assert 0.9 < time.monotonic() - begin < 30
        assert s.post("/v1/completions", {**long, "max_tokens": 2})["usage"]["completion_tokens"] == 2
    with Served(PROGRAM, [*REF, "-np", "1", "-c", "4096"]) as s:
        newline = s.post("/tokenize", {"content": "\n"})["tokens"][-1]
        for bias, most in ({str(newline): 100}, 20), ({str(newline): -100}, 0):
            got = s.post("/completion", {"prompt": PROMPT, "n_predict": 40, "t_max_predict_ms": 1, "ignore_eos": True, "logit_bias": bias,
                                         "temperature": 0})
            assert (got["tokens_predicted"] < most) if most else got["tokens_predicted"] == 40, (bias, got)


def large_answers():
    """A whole answer has a bound, with the probabilities of prompts too; a stream has none, and others go on."""
    with Served(PROGRAM, [*REF, "-np", "4", "-c", "256", "--max-answer", "65536"]) as s:
        small = {"prompt": PROMPT, "max_tokens": 20, "temperature": 0, "ignore_eos": True, "logprobs": 20}
        large = {**small, "n": 8, "max_tokens": 100}
        want = s.post("/v1/completions", small)["choices"][0]
        assert s.post("/v1/completions", {**large, "logprobs": 0})["usage"]["completion_tokens"] == 800
        echo = {**large, "prompt": [" ".join([PROMPT] * 40)] * 4, "n": 1, "max_tokens": 0, "echo": True}
        for body in large, echo:
            status, error = s.refused("/v1/completions", body)
            assert status == 400 and "--max-answer" in error["message"], (status, error)
            assert s.post("/v1/completions", small)["choices"][0] == want
        status, error = s.refused("/completion", {**large, "n_probs": 20})
        assert status == 400 and "--max-answer" in error["message"], (status, error)
        events = s.stream("/v1/completions", {**large, "stream": True})
        assert events[-1] is None and sum(len(c["logprobs"]["tokens"]) for e in events[:-1] for c in e["choices"] if c["logprobs"]) == 800


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "template").write_text(TEMPLATE)
        words = [*REF, "-np", "16", "-c", "1024", "--metrics",
                 "--chat-template-file", str(folder / "template")]
        with Served(PROGRAM, words) as s:
            for name, test in sorted(globals().items()):
                if name.startswith("test_"):
                    begin = time.monotonic()
                    test(*([s, folder] if name == "test_chat_prompt" else [s]))
                    print(f"{name[5:]}: {time.monotonic() - begin:.2f} s")
        assert s.code == 0, ("the server ended with", s.code, s.lines[-5:])
    ways()
    overload()
    deadlines()
    large_answers()
    context_shift()


if __name__ == "__main__":
    main()
