#!/usr/bin/env python3
"""Writes cases.json: random grammars with texts, and whether llguidance 1.9.1 accepts them; random schemas with values, and
whether jsonschema 4.26.0 accepts them. Values have the properties in the order of the schema.

    python3 make.py > cases.json        needs pip install llguidance jsonschema"""
import json
import os
import random
import sys

import llguidance
from jsonschema import Draft202012Validator

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "..", "scripts", "compare"))
import grammar_cases as cases  # noqa: E402


def grammar(r, tokens):
    rules = cases.random_grammar(r)
    m = llguidance.LLMatcher(tokens, llguidance.LLMatcher.grammar_from_lark(cases.lark(rules)), log_level=0)
    texts = {}
    for _ in range(4):
        text = cases.derive(r, rules, rules[0], [20])
        for t in (text, cases.mutate(r, text)):
            m.reset()
            if len(t) < 120 and not m.is_error():
                texts[t] = m.try_consume_tokens(list(t.encode())) == len(t.encode()) and m.is_accepting()
    return {"gbnf": cases.gbnf(rules), "texts": texts}


def spoil(r, v):
    """A value near v."""
    if isinstance(v, dict) and v:
        v = dict(v)
        n = r.choice(list(v))
        if r.random() < 0.3:
            del v[n]
        else:
            v[n] = spoil(r, v[n])
        return v
    if isinstance(v, list) and v and r.random() < 0.8:
        i = r.randrange(len(v))
        return v[:i] + r.choice([[], [spoil(r, v[i])]]) + v[i + 1 :]
    return r.choice([None, 7, -1, "ab", "", [], {}, 12345678, v if v is None else [v]])


def schema(r):
    s, make = cases.random_root(r)
    v = Draft202012Validator(s, format_checker=Draft202012Validator.FORMAT_CHECKER)
    values = {}
    for _ in range(3):
        value = make(2)
        for x in (value, spoil(r, value)):
            text = json.dumps(x, ensure_ascii=False)
            if len(text) < 200:
                values[text] = v.is_valid(x)
    return {"schema": json.dumps(s, ensure_ascii=False), "values": values}


def main():
    r, tokens = random.Random(5), llguidance.LLTokenizer("byte")
    out = {"grammars": [grammar(r, tokens) for _ in range(150)], "schemas": []}
    while len(out["schemas"]) < 120:
        s = schema(r)
        if len(s["schema"]) < 700:
            out["schemas"].append(s)
    print(json.dumps(out, ensure_ascii=False, indent=0))


main()
