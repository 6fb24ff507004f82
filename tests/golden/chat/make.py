#!/usr/bin/env python3
"""Writes templates.json beside it: templates, contexts and what jinja2 makes of them, and what llama.cpp's known templates give.

    tests/golden/chat/make.py

pip install jinja2==3.1.6. The prompts of known templates come from the functions below, which follow llama.cpp's src/llama-chat.cpp."""
import json
import os

import grammar
import judge

HERE = os.path.dirname(os.path.abspath(__file__))

# Short templates, one for each rule that a random one seldom meets.
RULES = r"""
{{ 1 }}{{ 1.0 }}{{ 1e16 }}{{ 1e15 }}{{ 0.1 + 0.2 }}{{ 1e-5 }}{{ 123456789012345680.0 }}{{ 5e-324 }}{{ -0.0 }}
{{ 7 // -2 }} {{ -7 % 3 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 2 ** 0.5 }} {{ 7 / 2 }} {{ 6 / 2 }}
{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 1 == 1.0 == true }} {{ 'a' in 'abc' }} {{ 1 not in [2, 3] }} {{ not 1 == 2 }}
{{ 'x' if false }}|{{ ('x' if false) is defined }}|{{ missing is defined }}|{{ missing }}|{{ missing.x }}
{{ none }} {{ true }} {{ [1, 'a', none, true, 1.5, (1,), (), {'k': 'v'}] }} {{ {1: 2, 'a': [3]} }}
{{ "it's" }} {{ ["it's", 'say "x"', 'both \' and "'] }} {{ ['\n\t\\ \x07 é 日 \u200b'] }}
{{ 'abc'[::-1] }} {{ 'abcdef'[1:5:2] }} {{ [1, 2, 3][-2:] }} {{ 'äöü'[1] }} {{ 'abc'[5] is defined }} {{ range(10)[2:8:3] }}
{{ 'a' ~ 1 ~ none ~ 2.5 }} {{ 'ab' * 3 }} {{ [1] + [2] }} {{ (1,) + (2,) }} {{ [0] * 3 }}
{{ '%s is %d and %.2f%%' % ('x', 3, 2.5) }} {{ '%(a)s' % {'a': 1} }} {{ '%5s|%-5s|%05d|%x' % ('a', 'b', 42, 255) }}
{{ '{} {0}'.format(1) }}
{{ '{1}-{0} {a:>5} {b:.2f} {c!r}'.format(1, 2, a='x', b=1.0, c='q') }} {{ '{{}}'.format() }} {{ '{:,}'.format(1234567) }}
{{ 'a b  c'.split() }} {{ 'a,b,c'.split(',', 1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ '  x '.strip() }}| {{ 'xxaxx'.strip('x') }} {{ 'a\nb\r\nc'.splitlines() }}
{{ 'Hello'.startswith(('a', 'H')) }} {{ 'abc'.endswith('bc') }} {{ 'banana'.replace('a', 'o', 2) }} {{ 'a-b'.partition('-') }} {{ 'hello world'.title() }}
{{ 'straße ΣΑΣ ǅ'.upper() }} {{ 'ÀÉ İ ΑΣ'.lower() }} {{ 'ﬁn'.capitalize() }} {{ "they're bill's".title() }} {{ "they're bill's"|title }}
{% for x in [1, 2, 3] %}{{ loop.index }}/{{ loop.length }}{{ ',' if not loop.last }}{% else %}none{% endfor %}
{% for x in [] %}x{% else %}none{% endfor %}|{% for x in [1, 2, 3] if x > 1 %}{{ x }}{{ loop.index }}{% endfor %}
{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}{% for k, v in {'x': 1}.items() %}{{ k }}{{ v }}{% endfor %}
{% for x in [1, 2, 3, 4] %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 4 %}{% break %}{% endif %}{{ x }}{% endfor %}
{% for x in [1, 2] %}{% break %}{% else %}else{% endfor %}
{% for x in 'ab' %}{{ loop.previtem }}{{ x }}{{ loop.nextitem }}{{ loop.revindex }}{{ loop.cycle('o', 'e') }}{{ loop.changed(1) }};{% endfor %}
{% set x = 1 %}{% for i in [1, 2] %}{{ x }}{% set x = x + 1 %}{{ x }}{% endfor %}{{ x }}
{% set ns = namespace(n=0) %}{% for i in [1, 2, 3] %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}{{ ns.missing is defined }}
{% set a, b = 1, [2] %}{{ a }}{{ b }}{% set c %}text {{ a }}{% endset %}[{{ c }}]{% set d | upper | trim %} x {% endset %}[{{ d }}]
{% macro m(a, b='d', c=none) %}{{ a }}-{{ b }}-{{ c }};{% endmacro %}{{ m(1) }}{{ m(1, c=3) }}{{ m(b=2, a=1) }}{{ m() }}
{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, x=3) }}
{% macro m(x) %}<{{ caller(x) }}>{% endmacro %}{% call(y) m(1) %}{{ y + 1 }}{% endcall %}
{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}
{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}
{% macro m(a) %}{% endmacro %}{{ m(b=2) }}
{% filter upper %}a{{ 'b' }}{% endfilter %}{% with a = 1, b = a %}{{ a }}{{ b }}{% endwith %}{% generation %}g{% endgeneration %}
{% raw %}{{ x }}{% endraw %}|{#- c -#}|{%- if true -%} x {%- endif -%} |
{{ [3, 1, 2]|sort }} {{ ['b', 'A']|sort }} {{ ['b', 'A']|sort(case_sensitive=true) }} {{ [1, 2]|sort(reverse=true) }} {{ {'b': 1, 'a': 2}|dictsort }}
{{ [{'a': 1}, {'a': 2}]|map(attribute='a')|list }} {{ ['a', 'b']|map('upper')|join('-') }} {{ [1, 2, 3]|select('odd')|list }} {{ [{'a': 1}, {}]|selectattr('a', 'defined')|list|length }}
{{ [1, 2]|first }}{{ [1, 2]|last }}{{ []|first is defined }} {{ 'abc'|reverse }} {{ [1, 2, 3]|reverse|list }} {{ [1, 1, 2]|unique|list }} {{ [[1, 2], [3]]|sum(start=[]) }}
{{ {'a': [1, {'b': none}], 'é': '<\u2028"'}|tojson }} {{ [1, [2]]|tojson(indent=2) }} {{ {'b': 1, 'a': 2}|tojson(sort_keys=true, separators=(',', ':')) }} {{ 'é🎉'|tojson(ensure_ascii=true) }} {{ []|tojson(indent=2) }}
{{ '{"a": [1, 2.5, null]}'|from_json }} {{ ('{"a": "b"}'|from_json).a }}
{{ '42'|int }} {{ '4.7'|int }} {{ 'x'|int(-1) }} {{ '0x1f'|int(base=16) }} {{ 3.7|int }} {{ '1.5'|float }} {{ 2.5|round }} {{ 3.14159|round(2) }} {{ 2.1|round(0, 'ceil') }} {{ 25|round(-1) }} {{ -3|abs }}
{{ 'a\nb\n\nc'|indent }}|{{ 'a\nb'|indent(2, true) }}|{{ 'a\n\nb'|indent(2, blank=true) }} {{ 'x'|center(5) }}| {{ 'a b c d e f g h i j'|truncate(9) }} {{ 'a b c'|wordcount }}
{{ missing|default('d') }}{{ ''|default('d') }}{{ ''|default('d', true) }}{{ none|d('x') }} {{ missing|length }}{{ missing|list }}
{{ '<b>'|e }} {{ '<'|safe + '<' }} {{ ['<']|join('<') }} {{ ('<'|safe) ~ '<' }}
{{ 1 is odd }}{{ 2 is even }}{{ 6 is divisibleby 3 }}{{ 'a' is string }}{{ {} is mapping }}{{ [] is sequence }}{{ 'a' is iterable }}{{ 1 is number }}{{ true is boolean }}{{ 1.0 is float }}{{ 1 is integer }}{{ none is none }}{{ 'A' is upper }}{{ 1 is in [1] }}{{ 1 is sameas 1 }}{{ x is not defined }}
{{ {'items': 1}.items }}
{{ {'items': 1}['items'] }}{{ {'a': {'b': [1, 2]}}.a.b[1] }}{{ {'a': 1}.get('b', 2) }}{{ {'a': 1}.get('b') }}{{ {'a': 1}.keys()|list }}
{{ dict(a=1, b=2) }}{{ dict({'x': 1}, y=2) }}{{ range(3)|list }}{{ range(5, 0, -2)|list }}{{ range(3) }}
{{ strftime_now('%d %b %Y %H:%M') }}
{{ raise_exception('a message') }}
{{ 'a' + 1 }}
{{ [].x.y }}
{{ 1|nofilter }}
{% if false %}{{ 1|nofilter }}{% endif %}ok
{{ 1 / 0 }}
{{ 'abc'.nomethod() }}
{{ range(100001) }}
{{ 'a' 'b' }}{{ "\x41\u00e9\n\101\q" }}
{{ (1, 2)[0] }}{{ (1) }}{{ () }}{{ (1,) }}{{ 1, 2 }}
{{ f(*[1], **{'b': 2}) }}{% macro f(a, b) %}{% endmacro %}
{% macro f(a, b) %}{{ a }}{{ b }}{% endmacro %}{{ f(*[1], **{'b': 2}) }}
{%
 if true %}
  a
  {% endif %}
b
    {%- set x = 1 %}  c
{{ x }}
{% for i in range(2) %}
  {{ i }}
{% endfor %}
{#  comment #}
d {%+ if true %} e{% endif +%}
f
{{ messages[0]['content'][1:] }}{{ messages|length }}{{ messages[-1].role }}{% for m in messages %}{{ m['content'] | trim }}{% endfor %}
{{ {} if }}
{% for %}
{{ 'unclosed
{% if x %}
{{ 1 + }}
{% endfor %}
{{ [1, 2 }}
{% set true = 1 %}
{% break %}
{{ "\ud800" }}
{{ 0b101 }}{{ 0x1F }}{{ 0o17 }}{{ 1_000 }}{{ 1.5e3 }}{{ .5 }}
"""


def split_rules():
    """One template a line, but for the block of lines that begins with an open tag."""
    lines, out, block = RULES.strip("\n").split("\n"), [], []
    for line in lines:
        block.append(line)
        if block[0] != "{%" or line == "f":
            out.append("\n".join(block))
            block = []
    return out


def known():
    """Prompts of known templates: functions from messages and add_generation_prompt to text."""
    def each(f, start="", last=""):
        return lambda ms, add: start + "".join(f(m["role"], m["content"]) for m in ms) + (last if add else "")

    def inst(lead, trail, strip):
        def f(ms, add):
            out, inside = "", False
            for m in ms:
                if not inside:
                    out, inside = out + lead + "[INST]" + trail, True
                c = m["content"]
                if m["role"] == "system":
                    out += c + "\n\n"
                elif m["role"] == "user":
                    out += c + lead + "[/INST]"
                else:
                    out, inside = out + trail + (c.strip() if strip else c) + "</s>", False
            return out
        return f

    def llama2(system, bos, strip):
        def f(ms, add):
            out, inside = "[INST] ", True
            for m in ms:
                c = m["content"].strip() if strip else m["content"]
                if not inside:
                    out, inside = out + ("<s>[INST] " if bos else "[INST] "), True
                if m["role"] == "system":
                    out += f"<<SYS>>\n{c}\n<</SYS>>\n\n" if system else c + "\n"
                elif m["role"] == "user":
                    out += c + " [/INST]"
                else:
                    out, inside = out + c + "</s>", False
            return out
        return f

    def by_role(system, user, assistant, start="", last=""):
        way = {"system": system, "user": user, "assistant": assistant}
        return each(lambda role, c: way[role](c), start, last)

    def gemma(ms, add):
        out, system = "", ""
        for m in ms:
            if m["role"] == "system":
                system += m["content"].strip()
                continue
            role = "model" if m["role"] == "assistant" else m["role"]
            out += f"<start_of_turn>{role}\n"
            if system and role != "model":
                out, system = out + system + "\n\n", ""
            out += m["content"].strip() + "<end_of_turn>\n"
        return out + ("<start_of_turn>model\n" if add else "")

    def orion(ms, add):
        out, system = "", ""
        for m in ms:
            if m["role"] == "system":
                system += m["content"]
            elif m["role"] == "user":
                out += "Human: " + (system + "\n\n" if system else "") + m["content"] + "\n\nAssistant: </s>"
                system = ""
            else:
                out += m["content"] + "</s>"
        return out

    def gigachat(ms, add):
        out, rest = "<s>", ms
        if ms[0]["role"] == "system":
            out, rest = out + ms[0]["content"] + "<|message_sep|>", ms[1:]
        for m in rest:
            if m["role"] == "user":
                out += f"user<|role_sep|>{m['content']}<|message_sep|>available functions<|role_sep|>[]<|message_sep|>"
            elif m["role"] == "assistant":
                out += f"assistant<|role_sep|>{m['content']}<|message_sep|>"
        return out + ("assistant<|role_sep|>" if add else "")

    def rwkv(ms, add):
        out = ""
        for i, m in enumerate(ms):
            out += {"system": "System", "user": "User", "assistant": "Assistant"}[m["role"]] + ": " + m["content"].strip() + "\n\n"
            out += "Assistant:" if m["role"] == "user" and i == len(ms) - 1 else ""
        return out

    def hunyuan(ms, add):
        out = "<｜hy_begin▁of▁sentence｜>"
        for i, m in enumerate(ms):
            if m["role"] == "system":
                out += m["content"] + "<｜hy_place▁holder▁no▁3｜>" if i == 0 else ""
            elif m["role"] == "assistant":
                out += "<｜hy_Assistant｜>" + m["content"] + "<｜hy_place▁holder▁no▁2｜>"
            else:
                out += "<｜hy_User｜>" + m["content"]
        return out + ("<｜hy_Assistant｜>" if add else "")

    def monarch(ms, add):
        return "<s>".join(f"{m['role']}\n{m['content']}</s>\n" for m in ms) + ("<s>assistant\n" if add else "")

    exaone = each(lambda role, c: f"[|{role}|]{c.strip()}" + ("\n" if role == "user" else "[|endofturn|]\n"), "", "[|assistant|]")
    kimi = each(lambda role, c: {"system": "<|im_system|>system", "user": "<|im_user|>user", "assistant": "<|im_assistant|>assistant"}[role] + "<|im_middle|>" + c + "<|im_end|>", "", "<|im_assistant|>assistant<|im_middle|>")
    return {
        "chatml": each(lambda role, c: f"<|im_start|>{role}\n{c}<|im_end|>\n", "", "<|im_start|>assistant\n"),
        "phi3": each(lambda role, c: f"<|{role}|>\n{c}<|end|>\n", "", "<|assistant|>\n"),
        "phi4": each(lambda role, c: f"<|im_start|>{role}<|im_sep|>{c}<|im_end|>", "", "<|im_start|>assistant<|im_sep|>"),
        "falcon3": each(lambda role, c: f"<|{role}|>\n{c}\n", "", "<|assistant|>\n"),
        "zephyr": each(lambda role, c: f"<|{role}|>\n{c}<|endoftext|>\n", "", "<|assistant|>\n"),
        "llama3": each(lambda role, c: f"<|start_header_id|>{role}<|end_header_id|>\n\n{c.strip()}<|eot_id|>", "", "<|start_header_id|>assistant<|end_header_id|>\n\n"),
        "llama4": each(lambda role, c: f"<|header_start|>{role}<|header_end|>\n\n{c.strip()}<|eot|>", "", "<|header_start|>assistant<|header_end|>\n\n"),
        "chatglm3": each(lambda role, c: f"<|{role}|>\n {c}", "[gMASK]sop", "<|assistant|>"),
        "chatglm4": each(lambda role, c: f"<|{role}|>\n{c}", "[gMASK]<sop>", "<|assistant|>\n"),
        "glmedge": each(lambda role, c: f"<|{role}|>\n{c}", "", "<|assistant|>"),
        "granite": each(lambda role, c: f"<|start_of_role|>{role}<|end_of_role|>{c}<|end_of_text|>\n", "", "<|start_of_role|>assistant<|end_of_role|>\n"),
        "megrez": each(lambda role, c: f"<|role_start|>{role}<|role_end|>{c}<|turn_end|>", "", "<|role_start|>assistant<|role_end|>"),
        "bailing": each(lambda role, c: f"<role>{'HUMAN' if role == 'user' else role.upper()}</role>{c}", "", "<role>ASSISTANT</role>"),
        "minicpm": each(lambda role, c: f"<用户>{c.strip()}<AI>" if role == "user" else c.strip()),
        "openchat": each(lambda role, c: ("" if role == "system" else f"GPT4 Correct {role.capitalize()}: ") + c + "<|end_of_turn|>", "", "GPT4 Correct Assistant:"),
        "command-r": each(lambda role, c: "<|START_OF_TURN_TOKEN|><|" + {"system": "SYSTEM", "user": "USER", "assistant": "CHATBOT"}[role] + "_TOKEN|>" + c.strip() + "<|END_OF_TURN_TOKEN|>", "", "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>"),
        "exaone3": exaone,
        "exaone4": exaone,
        "kimi-k2": kimi,
        "mistral-v1": inst(" ", " ", False),
        "mistral-v3": inst("", " ", True),
        "mistral-v3-tekken": inst("", "", False),
        "mistral-v7": by_role(lambda c: f"[SYSTEM_PROMPT] {c}[/SYSTEM_PROMPT]", lambda c: f"[INST] {c}[/INST]", lambda c: f" {c}</s>"),
        "mistral-v7-tekken": by_role(lambda c: f"[SYSTEM_PROMPT]{c}[/SYSTEM_PROMPT]", lambda c: f"[INST]{c}[/INST]", lambda c: f"{c}</s>"),
        "llama2": llama2(False, False, False),
        "llama2-sys": llama2(True, False, False),
        "llama2-sys-bos": llama2(True, True, False),
        "llama2-sys-strip": llama2(True, False, True),
        "gemma": gemma,
        "orion": orion,
        "gigachat": gigachat,
        "rwkv-world": rwkv,
        "hunyuan-dense": hunyuan,
        "monarch": monarch,
        "hunyuan-moe": by_role(lambda c: f"<|startoftext|>{c}<|extra_4|>", lambda c: f"<|startoftext|>{c}<|extra_0|>", lambda c: f"{c}<|eos|>"),
        "dots1": by_role(lambda c: f"<|system|>{c}<|endofsystem|>", lambda c: f"<|userprompt|>{c}<|endofuserprompt|>", lambda c: f"<|response|>{c}<|endofresponse|>", "", "<|response|>"),
        "smolvlm": by_role(lambda c: c + "\n\n", lambda c: f"User: {c}<end_of_utterance>\n", lambda c: f"Assistant: {c}<end_of_utterance>\n", "<|im_start|>", "Assistant:"),
        "vicuna": by_role(lambda c: c + "\n\n", lambda c: f"USER: {c}\n", lambda c: f"ASSISTANT: {c}</s>\n", "", "ASSISTANT:"),
        "vicuna-orca": by_role(lambda c: f"SYSTEM: {c}\n", lambda c: f"USER: {c}\n", lambda c: f"ASSISTANT: {c}</s>\n", "", "ASSISTANT:"),
        "deepseek": by_role(lambda c: c, lambda c: f"### Instruction:\n{c}\n", lambda c: f"### Response:\n{c}\n<|EOT|>\n", "", "### Response:\n"),
        "deepseek2": by_role(lambda c: c + "\n\n", lambda c: f"User: {c}\n\n", lambda c: f"Assistant: {c}<｜end▁of▁sentence｜>", "", "Assistant:"),
        "deepseek3": by_role(lambda c: c + "\n\n", lambda c: f"<｜User｜>{c}", lambda c: f"<｜Assistant｜>{c}<｜end▁of▁sentence｜>", "", "<｜Assistant｜>"),
        "yandex": by_role(lambda c: "", lambda c: f" Пользователь: {c}\n\n", lambda c: f" Ассистент: {c}\n\n", "<s>", " Ассистент:[SEP]"),
    }


MESSAGES = [
    {"role": "system", "content": " Be brief.\n"},
    {"role": "user", "content": "Hello\n"},
    {"role": "assistant", "content": " Yes? "},
    {"role": "user", "content": "<|x|> {{ y }}"},
]


def result(template, context):
    kind, text = judge.theirs(template, [context])[0]
    return {"template": template, "context": context, "text": text.decode() if kind == "O" else None}


def stable(case):
    return not (case["text"] and (" at 0x" in case["text"] or "built-in method" in case["text"]))


def main():
    context = json.dumps({"messages": MESSAGES, "bos_token": "<s>", "x": 1.5}, ensure_ascii=False)
    cases = [result(t, context) for t in split_rules()]
    for seed in range(900):
        template, contexts = grammar.case(77000000 + seed)
        case = result(template, contexts[0])
        if len(template) < 700 and (case["text"] is not None or seed % 4 == 0):
            cases.append(case)
    cases = [c for c in cases if stable(c)]
    while len(json.dumps(cases, ensure_ascii=False).encode()) > 170000:
        cases.pop()
    prompts = [{"name": name, "add": add, "text": f(MESSAGES, add)} for name, f in known().items() for add in (True, False)]
    with open(os.path.join(HERE, "templates.json"), "w", encoding="utf-8") as f:
        json.dump({"messages": MESSAGES, "known": prompts, "cases": cases}, f, ensure_ascii=False, indent=0)
        f.write("\n")
    print(f"{len(cases)} templates, {sum(c['text'] is None for c in cases)} of them errors; {len(prompts)} prompts of known templates")


main()
