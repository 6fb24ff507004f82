"""Random grammars with texts, and random JSON schemas with instances, for scripts/compare/grammars."""
import json

CHARS = "aabbc0é€😀"
PAIRS = [("a", "c"), ("b", "b"), ("0", "c"), ("é", "€"), ("a", "😀"), ("€", "\U0010ffff")]


# --- grammars: ("lit", text) ("class", negated, pairs) ("seq"|"alt", parts) ("rep", part, m, n) ("ref", rule) ---


def random_node(r, rule, n_rule, depth, guarded):
    """A part of a rule; guarded: something that is not empty stands in front of it in the rule."""
    k = r.random()
    if depth <= 0 or k < 0.25:
        return ("lit", "".join(r.choice(CHARS) for _ in range(r.choice([0, 1, 1, 1, 2, 3]))))
    if k < 0.4:
        return ("class", r.random() < 0.25, [r.choice(PAIRS) for _ in range(r.choice([1, 1, 2]))])
    if k < 0.6:
        parts = []
        for _ in range(r.choice([1, 2, 2, 3])):
            parts.append(random_node(r, rule, n_rule, depth - 1, guarded or any(not empty(p) for p in parts)))
        return ("seq", parts)
    if k < 0.72:
        return ("alt", [random_node(r, rule, n_rule, depth - 1, guarded) for _ in range(r.choice([2, 2, 3]))])
    if k < 0.87:
        m = r.choice([0, 0, 0, 1, 1, 2, 3])
        n = r.choice([None, None, 1, m, m + 1, m + 2, 40])
        if n is not None:
            n = max(n, m, 1)
        return ("rep", random_node(r, rule, n_rule, depth - 1, guarded), m, n)
    if guarded and r.random() < 0.5:
        return ("ref", r.randrange(n_rule))
    if rule + 1 < n_rule:
        return ("ref", r.randrange(rule + 1, n_rule))
    return ("lit", r.choice(CHARS))


def empty(node):
    """Whether a part may be empty, a rule counting as one that may."""
    kind = node[0]
    if kind == "lit":
        return not node[1]
    if kind == "seq":
        return all(empty(p) for p in node[1])
    if kind == "alt":
        return any(empty(p) for p in node[1])
    if kind == "rep":
        return node[2] == 0 or empty(node[1])
    return kind == "ref"


def random_grammar(r):
    """Rules without left recursion, each of which has a text that ends."""
    n = r.choice([1, 1, 2, 3, 4])
    rules = []
    for i in range(n):
        rules.append(("alt", [random_node(r, i, n, 3, False), ("lit", r.choice(CHARS))]))
    return rules


def derive(r, rules, node, budget):
    """A random text of a part; budget [1]: characters that are left."""
    kind = node[0]
    if kind == "lit":
        budget[0] -= len(node[1])
        return node[1]
    if kind == "class":
        budget[0] -= 1
        return random_char(r, node)
    if kind == "seq":
        return "".join(derive(r, rules, p, budget) for p in node[1])
    if kind == "alt":
        return derive(r, rules, node[1][-1] if budget[0] < 0 else r.choice(node[1]), budget)
    if kind == "rep":
        m, n = node[2], node[3]
        most = m + 3 if n is None else min(n, m + 3)
        if n == 40 and r.random() < 0.3:
            most = 41 if r.random() < 0.2 else 40
        count = m if budget[0] < 0 else r.randint(m, most)
        return "".join(derive(r, rules, node[1], budget) for _ in range(count))
    budget[0] -= 1
    if budget[0] < -200:
        return ""
    return derive(r, rules, rules[node[1]], budget)


def random_char(r, node):
    inside = lambda c: any(lo <= c <= hi for lo, hi in node[2])
    for _ in range(20):
        lo, hi = r.choice(node[2])
        c = r.choice(CHARS + lo + hi) if r.random() < 0.7 else chr(r.randint(ord(lo), ord(hi)))
        if inside(c) != node[1] and not 0xD800 <= ord(c) < 0xE000:
            return c
    return "a"


def mutate(r, text):
    for _ in range(r.choice([0, 1, 1, 2])):
        at = r.randrange(len(text) + 1)
        k = r.random()
        if k < 0.4:
            text = text[:at] + r.choice(CHARS) + text[at:]
        elif k < 0.8:
            text = text[:at] + text[at + 1 :]
        else:
            text = text[:at] + r.choice(CHARS) + text[at + 1 :]
    return text


def escape(c):
    return f"\\U{ord(c):08X}" if ord(c) > 126 else c


def gbnf_class(node):
    return "[" + "^" * node[1] + "".join(f"{escape(lo)}-{escape(hi)}" for lo, hi in node[2]) + "]"


def bounds(m, n):
    if n is None:
        return {0: "*", 1: "+"}.get(m, f"{{{m},}}")
    return "?" if (m, n) == (0, 1) else f"{{{m}}}" if m == n else f"{{{m},{n}}}"


def gbnf_node(node):
    kind = node[0]
    if kind == "lit":
        return '"' + node[1] + '"' if node[1] else '( "" )'
    if kind == "class":
        return gbnf_class(node)
    if kind == "seq":
        return "( " + " ".join(gbnf_node(p) for p in node[1]) + " )"
    if kind == "alt":
        return "( " + "\n  | ".join(gbnf_node(p) for p in node[1]) + " )"
    if kind == "rep":
        return "( " + gbnf_node(node[1]) + " )" + bounds(node[2], node[3])
    return "root" if node[1] == 0 else f"r{node[1]}"


def gbnf(rules):
    return "".join(f"{'root' if i == 0 else f'r{i}'} ::= {gbnf_node(x)}\n" for i, x in enumerate(rules))


def lark_node(node):
    """llguidance's notation, in which every terminal is one character, so that its lexer decides nothing."""
    kind = node[0]
    if kind == "lit":
        return "(" + " ".join(json.dumps(c, ensure_ascii=False) for c in node[1]) + ")" if node[1] else '""'
    if kind == "class":
        body = "".join(f"\\u{{{ord(lo):x}}}-\\u{{{ord(hi):x}}}" for lo, hi in node[2])
        return f"/[{'^' * node[1]}{body}]/"
    if kind == "seq":
        return "(" + " ".join(lark_node(p) for p in node[1]) + ")"
    if kind == "alt":
        return "(" + " | ".join(lark_node(p) for p in node[1]) + ")"
    if kind == "rep":
        return "(" + lark_node(node[1]) + ")" + bounds(node[2], node[3])
    return "start" if node[1] == 0 else f"r{node[1]}"


def lark(rules):
    return "".join(f"{'start' if i == 0 else f'r{i}'}: {lark_node(x)}\n" for i, x in enumerate(rules))


# --- JSON schemas, each with a function that makes valid instances (None: there is none) ---

NAMES = ["a", "b", "ab", "abc", "key", "é", 'q"', "x\\y", "kind"]
WORDS = ["", "a", "ab", "Hello", "é€😀", 'say "x"', "tab\there", "\\", "/", "x" * 12, "\x01"]
FORMATS = {
    "date": ["2024-02-29", "1999-12-31", "2023-02-28"],
    "time": ["12:30:00Z", "23:59:59.25+01:00"],
    "date-time": ["2024-02-29T00:00:00Z", "1970-01-01T12:00:00.5-07:30"],
    "uuid": ["123e4567-e89b-12d3-a456-426614174000"],
    "ipv4": ["0.0.0.0", "255.249.19.1"],
    "ipv6": ["2001:db8:0:0:0:ff00:42:8329"],
    "email": ["a.b@example.org"],
    "hostname": ["www.example.org"],
}
PATTERNS = {
    "^[a-c]{2,4}$": ["ab", "abca"],
    "^\\d+(\\.\\d{1,2})?$": ["7", "12.34"],
    "^(foo|b\\w*r)$": ["foo", "br", "b_9r"],
    "^[^x\"]*$": ["", "é€ a"],
    "ab+c": ["abc", "xxabbbcyy"],
    "^a|z$": ["apple", "jazz"],
    "^\\s?[A-Z][a-z]*?$": ["Abc", "\tX"],
    "^\\u0041\\x42.$": ["AB\t", "ABé"],
}


def any_value(r, depth):
    k = r.random()
    if depth <= 0 or k < 0.6:
        return r.choice([None, True, False, 0, -7, 12, 3.5, -0.25, 1e-7, 1.5e300] + WORDS)
    if k < 0.8:
        return [any_value(r, depth - 1) for _ in range(r.choice([0, 1, 2]))]
    return {n: any_value(r, depth - 1) for n in r.sample(NAMES, r.choice([0, 1, 2]))}


def random_schema(r, depth, defs):
    """A schema and a function from a depth to a valid instance."""
    kinds = [integer_schema, string_schema, plain_schema, enum_schema, number_schema]
    if depth > 0:
        kinds += [object_schema] * 4 + [array_schema] * 2 + [any_schema, one_schema, all_schema, ref_schema]
    return r.choice(kinds)(r, depth, defs)


def integer_schema(r, depth, defs):
    lo, hi = sorted(r.choice([-(10**15), -1234, -100, -99, -10, -1, 0, 1, 5, 9, 10, 11, 99, 100, 4096, 10**12]) for _ in "ab")
    s, least, most = {"type": "integer"}, -(10**17), 10**17
    if r.random() < 0.6:
        s["minimum"], least = (lo, lo)
    if r.random() < 0.6:
        if lo < hi and r.random() < 0.3:
            s["exclusiveMaximum"], most = hi, hi - 1
        else:
            s["maximum"], most = hi, hi
    return s, lambda d: r.choice([least, most, r.randint(least, most)])


def number_schema(r, depth, defs):
    return {"type": "number"}, lambda d: r.choice([0, 1, -5, 0.5, -12.75, 1e-9, 2.5e200, 1e16, 123456789012345])


def string_schema(r, depth, defs):
    k = r.random()
    if k < 0.3:
        pattern = r.choice(list(PATTERNS))
        return {"type": "string", "pattern": pattern}, lambda d: r.choice(PATTERNS[pattern])
    if k < 0.5:
        form = r.choice(list(FORMATS))
        return {"type": "string", "format": form}, lambda d: r.choice(FORMATS[form])
    lo, hi = r.choice([(0, None), (0, 5), (2, 2), (1, 30), (3, None), (0, 300)])
    s = {"type": "string"}
    if lo:
        s["minLength"] = lo
    if hi is not None:
        s["maxLength"] = hi
    make = lambda d: "".join(r.choice("ab é€😀\"\\\n") for _ in range(r.randint(lo, hi if hi is not None and hi < 40 else lo + 9)))
    return s, make


def plain_schema(r, depth, defs):
    return r.choice(
        [
            ({"type": "boolean"}, lambda d: r.random() < 0.5),
            ({"type": "null"}, lambda d: None),
            ({"type": ["boolean", "null", "integer"]}, lambda d: r.choice([True, None, 4])),
            (True, lambda d: any_value(r, d)),
            ({}, lambda d: any_value(r, d)),
            ({"description": "any", "title": "x", "default": 1}, lambda d: any_value(r, d)),
        ]
    )


def enum_schema(r, depth, defs):
    values = []
    for v in [any_value(r, 1) for _ in range(r.choice([1, 2, 5]))]:
        if not any(type(v) == type(w) and v == w for w in values):
            values.append(v)
    if r.random() < 0.3:
        return {"const": values[0]}, lambda d: values[0]
    return {"enum": values}, lambda d: r.choice(values)


def object_schema(r, depth, defs):
    names = r.sample(NAMES, r.choice([0, 1, 2, 3, 4]))
    props = {n: random_schema(r, depth - 1, defs) for n in names}
    required = [n for n in names if r.random() < 0.5]
    s = {"type": "object", "properties": {n: props[n][0] for n in names}}
    other = None
    k = r.random()
    if required or r.random() < 0.3:
        s["required"] = required
    if k < 0.5:
        s["additionalProperties"] = False
    elif k < 0.75:
        s["additionalProperties"], other = random_schema(r, depth - 2, defs)
    else:
        other = lambda d: any_value(r, d)

    def make(d):
        out = {n: props[n][1](d - 1) for n in names if n in required or (d > 0 and r.random() < 0.5)}
        if other and d > 0:
            for n in r.sample(["z", "abx", "", "longer key", "ü"], r.choice([0, 0, 1, 2])):
                out[n] = other(d - 1)
        return out

    return s, make


def array_schema(r, depth, defs):
    prefix = [random_schema(r, depth - 1, defs) for _ in range(r.choice([0, 0, 1, 2]))]
    rest = random_schema(r, depth - 1, defs) if r.random() < 0.7 else (False, None)
    lo = r.choice([0, 0, 1, 2])
    s = {"type": "array", "items": rest[0]}
    most = len(prefix) if rest[1] is None else lo + 3
    lo = min(lo, most)
    if prefix:
        s["prefixItems"] = [p[0] for p in prefix]
    if lo:
        s["minItems"] = lo
    if rest[1] is not None and r.random() < 0.5:
        s["maxItems"] = most

    def make(d):
        n = r.randint(lo, most) if d > 0 else lo
        return [(prefix[i] if i < len(prefix) else rest)[1](d - 1) for i in range(n)]

    return s, make


def any_schema(r, depth, defs):
    parts = [random_schema(r, depth - 1, defs) for _ in range(r.choice([1, 2, 3]))]
    return {"anyOf": [p[0] for p in parts]}, lambda d: r.choice(parts)[1](d - 1)


def one_schema(r, depth, defs):
    parts = []
    for tag in r.sample(["cat", "dog", "bird"], r.choice([2, 3])):
        s, make = object_schema(r, depth - 1, defs)
        s["properties"] = {"tag": {"const": tag}, **s["properties"]}
        s["required"] = ["tag"] + s.get("required", [])
        parts.append((s, lambda d, tag=tag, make=make: {"tag": tag, **make(d - 1)}))
    parts.append(({"type": "integer"}, lambda d: 5))
    return {"oneOf": [p[0] for p in parts]}, lambda d: r.choice(parts)[1](d)


def all_schema(r, depth, defs):
    s, make = integer_schema(r, depth, defs)
    b, name = {"properties": {"b": {"type": "string"}}, "required": ["b"]}, r.choice(["a", "n"])
    a = {"type": "object", "properties": {name: s}, "required": [name]}
    return {"allOf": [a, b]}, lambda d: {name: make(d), "b": r.choice(WORDS)}


def ref_schema(r, depth, defs):
    """A reference to a schema that refers to itself."""
    name = f"t{len(defs)}"
    defs[name] = True
    s, make = random_schema(r, depth - 1, defs)
    defs[name] = {
        "type": "object",
        "properties": {"value": s, "next": {"anyOf": [{"$ref": f"#/$defs/{name}"}, {"type": "null"}]}},
        "required": ["value", "next"],
        "additionalProperties": False,
    }

    def made(d):
        return {"value": make(d - 1), "next": made(d - 1) if d > 0 and r.random() < 0.6 else None}

    return {"$ref": f"#/$defs/{name}"}, made


def random_root(r):
    defs = {}
    s, make = random_schema(r, 3, defs)
    if isinstance(s, dict) and defs:
        s = {**s, "$defs": defs}
    return s, make
