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
