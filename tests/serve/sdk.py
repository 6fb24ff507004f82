#!/usr/bin/env python3
"""The routes by the clients that people use: sdk.py GPURUN. Exits with 77 where PyPI's openai and ollama are not installed;
langchain-openai and litellm are tried where they are."""

import importlib.util
import json
import math
import os
import pathlib
import sys
import tempfile

from served import Served
import generate

missing = [name for name in ("openai", "ollama") if not importlib.util.find_spec(name)]
if missing:
    print("skipped:", ", ".join(missing), "of PyPI not installed")
    sys.exit(77)

import ollama
import openai

MESSAGES, TOOLS = generate.MESSAGES, generate.TOOLS


def test_models(c, _):
    (model,) = c.models.list().data
    assert c.models.retrieve(model.id).id == model.id


def test_completions(c, _):
    whole = c.completions.create(model="m", prompt=generate.PROMPT, max_tokens=12, temperature=0, logprobs=2)
    parts = list(c.completions.create(model="m", prompt=generate.PROMPT, max_tokens=12, temperature=0, stream=True))
    assert "".join(p.choices[0].text for p in parts) == whole.choices[0].text and len(whole.choices[0].logprobs.tokens) == 12


def test_chat(c, _):
    ask = {"model": "m", "messages": MESSAGES, "max_completion_tokens": 16, "temperature": 0}
    whole = c.chat.completions.create(**ask, logprobs=True, top_logprobs=2)
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    assert len(whole.choices[0].logprobs.content[0].top_logprobs) == 2
    text, usage = "", None
    for part in c.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}):
        text += part.choices[0].delta.content or "" if part.choices else ""
        usage = part.usage or usage
    assert text == whole.choices[0].message.content and usage.completion_tokens == whole.usage.completion_tokens


def test_tools(c, _):
    ask = {"model": "m", "messages": MESSAGES, "tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 300}
    whole = c.chat.completions.create(**ask, seed=1).choices[0]
    assert whole.finish_reason == "tool_calls"
    (call,) = whole.message.tool_calls
    assert json.loads(call.function.arguments)["place"] in ("here", "there")
    with c.chat.completions.stream(**ask, seed=1) as stream:
        last = stream.get_final_completion().choices[0]
    assert last.message.tool_calls[0].function.arguments == call.function.arguments
    back = [*MESSAGES, whole.message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": call.id, "content": "it is there"}]
    assert c.chat.completions.create(model="m", messages=back, tools=TOOLS, max_tokens=4).choices[0].message.role == "assistant"


def test_responses(c, _):
    ask = {"model": "m", "instructions": "Be brief.", "input": "Where is the ball?", "max_output_tokens": 16, "temperature": 0}
    whole = c.responses.create(**ask)
    with c.responses.stream(**ask) as stream:
        text = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
    assert text == whole.output_text


def test_errors(c, _):
    for call, error in ((lambda: c.models.retrieve("none"), openai.NotFoundError),
                        (lambda: c.chat.completions.create(model="m", messages=[]), openai.BadRequestError),
                        (lambda: c.completions.create(model="m", prompt="x", temperature="hot"), openai.BadRequestError)):
        try:
            call()
        except error as e:
            assert e.body["message"], e
        else:
            raise AssertionError(f"no {error.__name__}")


def test_ollama(_, url):
    o = ollama.Client(host=url)
    options = {"temperature": 0, "num_predict": 12}
    assert o.list().models[0].model and "completion" in o.show("m").capabilities
    whole = o.chat(model="m", messages=MESSAGES, options=options)
    parts = list(o.chat(model="m", messages=MESSAGES, options=options, stream=True))
    assert "".join(p.message.content for p in parts) == whole.message.content and parts[-1].done
    said = o.generate(model="m", prompt="Where is the ball?", options=options)
    assert said.done and said.eval_count
    blue = o.chat(model="m", messages=MESSAGES, format={"enum": ["blue", "red"]})
    assert json.loads(blue.message.content) in ("blue", "red")
    assert o.generate(model="m").done_reason == o.chat(model="m", messages=[]).done_reason == "load"
    try:
        o.chat(model="m", messages=MESSAGES, options={"temperature": 1e9})
    except ollama.ResponseError as e:
        assert e.status_code == 400 and e.error.startswith("temperature:"), e
    else:
        raise AssertionError("no ResponseError")


def test_embeddings(c, url):
    packed = c.embeddings.create(model="m", input=["a cat", "a dog"])  # asks for base64
    plain = c.embeddings.create(model="m", input=["a cat", "a dog"], encoding_format="float")
    assert packed.usage.prompt_tokens
    for a, b in zip(packed.data, plain.data):
        assert all(math.isclose(x, y, rel_tol=1e-6, abs_tol=1e-7) for x, y in zip(a.embedding, b.embedding))
    assert list(ollama.Client(host=url).embed(model="m", input="a cat").embeddings[0]) == plain.data[0].embedding


def test_langchain(_, url):
    if not importlib.util.find_spec("langchain_openai"):
        return print("skipped: langchain-openai is not installed")
    from langchain_openai import ChatOpenAI, OpenAIEmbeddings

    model = ChatOpenAI(model="m", base_url=url + "/v1", api_key="none", temperature=0, max_tokens=16)
    whole = model.invoke("Where is the ball?")
    assert whole.content and whole.usage_metadata["input_tokens"]
    assert "".join(part.content for part in model.stream("Where is the ball?")) == whole.content
    calls = model.bind_tools(TOOLS, tool_choice="required", max_tokens=300).invoke("Where is the ball?").tool_calls
    assert calls and calls[0]["args"]["place"] in ("here", "there"), calls
    vectors = OpenAIEmbeddings(model="m", base_url=url + "/v1", api_key="none", check_embedding_ctx_length=False)
    assert len(vectors.embed_query("a cat")) == len(vectors.embed_documents(["a", "b"])[1])


def test_litellm(_, url):
    if not importlib.util.find_spec("litellm"):
        return print("skipped: litellm is not installed")
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # nothing is downloaded
    import litellm

    ask = {"model": "openai/m", "api_base": url + "/v1", "api_key": "none", "messages": MESSAGES, "max_tokens": 16, "temperature": 0}
    whole = litellm.completion(**ask)
    parts = [part.choices[0].delta.content or "" for part in litellm.completion(**ask, stream=True)]
    assert whole.usage.completion_tokens and "".join(parts) == whole.choices[0].message.content


def main():
    with tempfile.TemporaryDirectory() as name:
        template = pathlib.Path(name) / "template"
        template.write_text(generate.TEMPLATE)
        with Served(sys.argv[1], [*generate.REF, "-c", "1024", "--embeddings", "--pooling", "mean", "--chat-template-file", str(template)]) as s:
            client = openai.OpenAI(base_url=s.url + "/v1", api_key="none", max_retries=0)
            for name, test in sorted(globals().items()):
                if name.startswith("test_"):
                    test(client, s.url)
                    print(name[5:])
    print("openai", openai.__version__)


main()
