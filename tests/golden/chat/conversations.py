"""Twelve contexts that chat templates are rendered with."""
import json

TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


def user(text, **more):
    return {"role": "user", "content": text, **more}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


def system(text):
    return {"role": "system", "content": text}


def call(name, arguments, id="call00001"):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a place.\nUnits are metric.",
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string", "description": "City & country, e.g. \"Zürich, CH\""},
                "days": {"type": "integer", "default": 3, "minimum": 1},
                "unit": {"type": "string", "enum": ["C", "F"]},
                "where": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                "list": {"type": "array", "items": {"type": "object", "properties": {"x": {"type": "number"}}}},
            },
            "required": ["place"],
        },
        "return": {"type": "string"},
    },
}
SUM = {
    "type": "function",
    "function": {
        "name": "sum",
        "description": "Adds <numbers>",
        "parameters": {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": ["number", "null"]}}, "required": ["a", "b"]},
    },
}
TOOL_TURN = [
    user("What is the weather in Zürich?"),
    assistant("", tool_calls=[call("get_weather", {"place": "Zürich", "days": 2, "unit": None, "exact": True, "t": 1.5})]),
    {"role": "tool", "tool_call_id": "call00001", "name": "get_weather", "content": '{"temp": 21.5, "sky": "clear"}'},
]


def conversations():
    """Pairs of a name and a context."""
    return [
        ("user", dict(messages=[user("Hello")], add_generation_prompt=True)),
        ("system", dict(messages=[system("You are terse."), user("Hi there"), assistant("Hello!"), user("How are you?")], add_generation_prompt=True)),
        ("turns", dict(messages=[user("  a \n"), assistant("b\n"), user("c"), assistant(" d ")], add_generation_prompt=False)),
        ("tools", dict(messages=[system("Use tools."), user("Weather?")], tools=[WEATHER, SUM], add_generation_prompt=True)),
        ("results", dict(messages=TOOL_TURN + [assistant("It is 21.5 °C."), user("Thanks")], tools=[WEATHER], add_generation_prompt=True)),
        ("pending", dict(messages=TOOL_TURN, tools=[WEATHER, SUM], add_generation_prompt=True, enable_thinking=False)),
        (
            "reasoning",
            dict(
                messages=[
                    user("2+2?"),
                    assistant("<think>\nTwo and two.\n</think>\n\n4", reasoning_content="Two and two."),
                    user("And 3+3?"),
                    assistant("6", reasoning_content="Three and three.", thinking="Three and three."),
                    user("Good."),
                ],
                add_generation_prompt=True,
                enable_thinking=True,
                thinking=True,
                reasoning_effort="high",
            ),
        ),
        (
            "parts",
            dict(
                messages=[
                    {"role": "system", "content": [{"type": "text", "text": "Look."}]},
                    {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is this?"}, {"type": "text", "text": " And that?"}]},
                    {"role": "assistant", "content": [{"type": "text", "text": "A cat."}]},
                    {"role": "user", "content": [{"type": "text", "text": "Sure?"}]},
                ],
                add_generation_prompt=True,
            ),
        ),
        ("unicode", dict(messages=[system("Ünïcödé \u2028 ÀÉ"), user("日本語 🎉 <|im_start|> ' \" \\ \t & <b> \x7f é"), assistant("ßΣΑΣ ﬁ"), user("\u00a0x\u3000")], add_generation_prompt=True)),
        ("empty", dict(messages=[system(""), user(""), assistant(""), user("   ")], add_generation_prompt=True)),
        (
            "parallel",
            dict(
                messages=[
                    system("Tools!"),
                    user("Both."),
                    assistant(None, tool_calls=[call("sum", {"a": 1, "b": 2}), call("get_weather", {"place": "Köln"}, "call00002")]),
                    {"role": "tool", "tool_call_id": "call00001", "name": "sum", "content": "3"},
                    {"role": "tool", "tool_call_id": "call00002", "name": "get_weather", "content": "rain"},
                    assistant("3 and rain."),
                    user("Again."),
                ],
                tools=[SUM, WEATHER],
                documents=[{"title": "T1", "text": "One.", "doc_id": 0, "content": "One."}, {"title": "T2", "text": "Two.", "doc_id": 1, "content": "Two."}],
                add_generation_prompt=True,
                date_string="01 Jan 2025",
            ),
        ),
        ("strings", dict(messages=[user("Go"), assistant("ok", tool_calls=[call("sum", '{"a": 1, "b": [2, {"c": null}]}')]), {"role": "tool", "content": {"sum": 3}, "tool_call_id": "call00001"}], add_generation_prompt=True, custom_tools=[SUM])),
    ]


def contexts():
    """The contexts as JSON texts, by name."""
    return {name: json.dumps({**TOKENS, **c}, ensure_ascii=False) for name, c in conversations()}
