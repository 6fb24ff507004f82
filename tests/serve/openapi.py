#!/usr/bin/env python3
"""Answers of a server beside tools/serve/openapi.yaml: openapi.py GPURUN. Exits with 77 where PyPI's schemathesis is not installed.

schemathesis makes requests of the description, right and wrong ones, and looks at the answers; a few that it would not find (streams, calls,
probabilities, keys) are made here. Answers may have no other fields than those described."""

import copy
import importlib.util
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

from served import Served
import generate

missing = [name for name in ("schemathesis", "jsonschema_rs", "yaml") if not importlib.util.find_spec(name)]
if missing:
    print("skipped:", ", ".join(missing), "of PyPI not installed")
    sys.exit(77)

import jsonschema_rs
import yaml

FILE = pathlib.Path(__file__).resolve().parents[2] / "tools/serve/openapi.yaml"
CONFORMANCE = "status_code_conformance,content_type_conformance,response_headers_conformance,response_schema_conformance"
METHODS = ("get", "post", "delete")
MESSAGES, TOOLS = generate.MESSAGES, generate.TOOLS


def operations(document):
    for path, item in document["paths"].items():
        for method in METHODS:
            if method in item:
                yield path, method, item[method]


def answers(document, operation):
    """Status and content of each answer."""
    for status, r in operation["responses"].items():
        r = document["components"]["responses"][r["$ref"].rsplit("/", 1)[1]] if "$ref" in r else r
        yield status, r.get("content", {})


def close(document):
    """Objects of answers have what is described and nothing else."""
    seen = set()

    def walk(schema):
        if isinstance(schema, list):
            return [walk(s) for s in schema]
        if not isinstance(schema, dict):
            return None
        name = str(schema.get("$ref", "")).rsplit("/", 1)[-1]
        if name and name not in seen:
            seen.add(name)
            walk(document["components"]["schemas"][name])
        if schema.get("type") == "object" and "properties" in schema:
            schema.setdefault("additionalProperties", False)
        return [walk(s) for s in schema.values()]

    for _, _, operation in operations(document):
        for _, content in answers(document, operation):
            for media in content.values():
                walk(media["schema"])
                walk(media.get("x-event"))
    return document


def run(path, url, *words):
    done = subprocess.run([sys.executable, "-c", "from schemathesis.cli import schemathesis; schemathesis()", "run", str(path), "--url", url, "--warnings", "off", "--continue-on-failure",
                           "--seed", "1", *words], cwd=path.parent, capture_output=True, text=True, timeout=280)
    print(" ".join(words), "\n".join(line for line in done.stdout.splitlines() if "generated," in line))
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]


class Validator:
    def __init__(self, document):
        self.document = document

    def check(self, schema, value, what):
        try:
            jsonschema_rs.validate({**copy.deepcopy(schema), "components": self.document["components"]}, value)
        except jsonschema_rs.ValidationError as e:
            raise AssertionError(f"{what}: {e}\n{json.dumps(value)[:2000]}") from None

    def answer(self, path, body, s):
        """Checks a good answer, whole and as a stream, whose events are described too."""
        content = dict(answers(self.document, self.document["paths"][path]["post"]))["200"]
        got = s.post(path, {**body, "stream": False})
        self.check(content["application/json"]["schema"], got, path)
        (event,) = [media["x-event"] for media in content.values() if "x-event" in media]
        events = [e for e in s.stream(path, {**body, "stream": True}) if e is not None]
        for e in events:
            self.check(event, e, path + " event")
        assert events, path
        return got


def check_answers(document, s):
    v = Validator(document)
    short = {"temperature": 0, "max_tokens": 4}
    required = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 300, "seed": 1}
    thought = 'root ::= "<think>\\na plan\\n</think>\\n\\nan answer"'
    for fields in ({"echo": True, "logprobs": 2}, {"n": 2, "stream_options": {"include_usage": True}}, {"prompt": ["a", "b"]}):
        v.answer("/completions", {"prompt": "Once", **short, **fields}, s)
    for fields in ({"logprobs": True, "top_logprobs": 2}, {"stream_options": {"include_usage": True}, "n": 2}, required,
                   {"grammar": thought, "max_tokens": 60}):
        got = v.answer("/chat/completions", {"messages": MESSAGES, **short, **fields}, s)
        assert fields is not required or got["choices"][0]["message"]["tool_calls"], got
    flat = [{"type": "function", **tool["function"]} for tool in TOOLS]
    for fields in ({"max_output_tokens": 4}, {**required, "tools": flat}):
        v.answer("/responses", {"input": "Where is it?", **fields}, s)
    for fields in ({"n_probs": 2, "return_tokens": True}, {"stop": "e", "max_tokens": 40}, {"prompt": ["a", "b"]}):
        v.answer("/completion", {"prompt": "Once", **short, **fields}, s)
    for fields in ({"options": {"num_predict": 4}}, {k: v for k, v in required.items() if k != "parallel_tool_calls"}, {"grammar": thought, "max_tokens": 60}):
        v.answer("/api/chat", {"messages": MESSAGES, **fields}, s)
    v.answer("/api/generate", {"prompt": "Once", "options": {"num_predict": 4}}, s)


def check_keys(document, s):
    """Every route that asks for a key says so as described."""
    v = Validator(document)
    for path, method, operation in operations(document):
        status, answer = s.call(method.upper(), path.replace("{", "").replace("}", ""), {} if method == "post" else None)
        described = dict(answers(document, operation))
        if "401" in described:
            assert status == 401, (path, status)
            v.check(described["401"]["application/json"]["schema"], answer, path)
        else:
            assert status == 200, (path, status)


def main():
    document = close(yaml.safe_load(FILE.read_text()))
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        template, path = folder / "template", folder / "openapi.yaml"
        template.write_text(generate.TEMPLATE)
        path.write_text(yaml.safe_dump(document))
        words = ["-t", "1", "-np", "4", "-n", "8", "--embeddings", "--pooling", "mean", "--props", "--slots", "--metrics",
                 "--chat-template-file", str(template), "--slot-save-path", name]
        several = ["--models-dir", name, "-m", str(folder / "default.gguf")]
        shutil.copy(FILE.parents[1] / "default-model.gguf", folder / "default.gguf")
        with Served(sys.argv[1], [*words, "-c", "1024"]) as s:
            check_answers(document, s)
        with Served(sys.argv[1], [*words, "-c", "128"]) as s:
            absent, of_several = (["PATH", "/rerank", "PATH", "/infill"], ["PATH", "/models/load", "PATH", "/models/unload"])
            out = [word.replace("PATH", "--exclude-path") for word in absent + of_several]
            run(path, s.url, "--phases", "coverage", "-c", CONFORMANCE + ",not_a_server_error,unsupported_method,allow_header_conformance", *out)
            run(path, s.url, "--phases", "coverage", "-c", CONFORMANCE, *(word.replace("PATH", "--include-path") for word in absent))
            # an empty prompt of Ollama's is answered whatever else there is
            strict = [*out, "--exclude-path", "/api/chat", "--exclude-path", "/api/generate"]
            run(path, s.url, "--phases", "coverage", "-c", "negative_data_rejection", *strict)
            run(path, s.url, "--phases", "fuzzing", "-n", "20", "-c", CONFORMANCE + ",not_a_server_error,negative_data_rejection", *strict)
            run(path, s.url, "--phases", "stateful", "-n", "10", "--max-time", "20", "-c", CONFORMANCE + ",not_a_server_error,use_after_free", *out)
            assert s.get("/health") == (200, {"status": "ok"})
        assert s.code == 0, (s.code, s.lines[-5:])
        with Served(sys.argv[1], [*words, *several, "-c", "128"]) as s:
            run(path, s.url, "--phases", "coverage", "-c", CONFORMANCE + ",not_a_server_error,unsupported_method",
                *(word.replace("PATH", "--include-path") for word in [*of_several, "PATH", "/models", "PATH", "/tokenize", "PATH", "/api/show"]))
        with Served(sys.argv[1], [*words, *several, "-c", "128", "--api-key", "key"]) as s:
            check_keys(document, s)


main()
