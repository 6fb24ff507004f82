"""Random templates of the subset that chat templates use, and random contexts for them."""
import json
import random

NAMES = ["a", "b", "c", "d", "messages", "messages"]
LOCALS = ["x", "y", "z"]
WORDS = ["", "a", "user", "Hello World", "  pad ", "a,b,,c", "x\ny\n", "ÄÖß", "日本", "🎉!", "<think>t</think> r", "it's", '"q"', "12", "-3.5", "1e3", "Abc dEF", "{}", "%s", "ﬁΣ ΑΣ", "\u00a0\u2003", "a-b_c", "TRUE", "\\"]
KEYS = ["role", "content", "name", "id", "n", "kind", "list"]


def data(r, depth=0):
    k = r.randrange(11 if depth < 3 else 7)
    if k < 3:
        return r.choice(WORDS)
    if k == 3:
        return r.choice([0, 1, -1, 2, 7, 42, -100, 2**31, 10**15])
    if k == 4:
        return r.choice([0.0, -0.0, 0.1, 1.5, 2.5, -2.75, 1e16, 1e-5, 123456789.125, 3.0, 1e22])
    if k == 5:
        return r.choice([True, False])
    if k == 6:
        return None
    if k < 9:
        return [data(r, depth + 1) for _ in range(r.randrange(4))]
    return {r.choice(KEYS): data(r, depth + 1) for _ in range(r.randrange(4))}


def context(r):
    c = {n: data(r) for n in NAMES[:4] if r.random() < 0.9}
    c["messages"] = [{"role": r.choice(["user", "assistant", "system"]), "content": r.choice(WORDS), "n": r.randrange(5)} for _ in range(r.randrange(4))]
    return json.dumps(c, ensure_ascii=False)


def quote(r, s):
    q = r.choice("'\"")
    out = "".join({"\\": "\\\\", "\n": "\\n", q: "\\" + q}.get(ch, ch) for ch in s)
    return q + out + q


class Maker:
    def __init__(self, r):
        self.r, self.macros, self.loops = r, [], 0

    # --- expressions ---

    def const(self):
        r = self.r
        return r.choice([
            lambda: quote(r, r.choice(WORDS)),
            lambda: str(r.choice([0, 1, 2, 3, 10, 255])),
            lambda: r.choice(["1.5", "0.1", "2e3", "10.0", "1_000"]),
            lambda: r.choice(["true", "false", "none", "True", "None"]),
        ])()

    def name(self):
        r = self.r
        names = NAMES + LOCALS
        n = r.choice(names) if r.random() < 0.97 else "missing"
        if self.loops and r.random() < 0.2:
            return "loop." + r.choice(["index", "index0", "first", "last", "length", "revindex", "revindex0", "previtem", "nextitem", "depth"])
        return n

    def text(self, d):
        """An expression that is probably a text."""
        r = self.r
        return r.choice([
            lambda: quote(r, r.choice(WORDS)),
            lambda: f"({self.expr(d)} ~ {self.expr(d)})",
            lambda: f"(({self.expr(d)})|string)",
            lambda: f"{self.text(d)}{self.method(d)}" if d else quote(r, r.choice(WORDS)),
            lambda: f"{self.text(d)}|{self.text_filter(d)}" if d else quote(r, r.choice(WORDS)),
            lambda: f"messages[0].{r.choice(['role', 'content'])}",
            lambda: f"{quote(r, r.choice(['%s', '%d-%s', '%5.2f|', '%-5s|%r', '%%', 'q%x']))} % {r.choice([self.expr(0), '(1, 2)', '(3, ' + self.expr(0) + ')'])}",
        ])()

    def method(self, d):
        r, t = self.r, lambda: quote(self.r, self.r.choice(WORDS[:12]))
        return "." + r.choice([
            lambda: r.choice(["strip", "lstrip", "rstrip"]) + r.choice(["()", f"({t()})"]),
            lambda: r.choice(["upper", "lower", "title", "capitalize", "swapcase", "splitlines", "isdigit", "isalpha", "isspace", "isupper", "islower"]) + "()",
            lambda: r.choice(["split", "rsplit"]) + r.choice(["()", f"({t()})", f"({t()}, {r.randrange(3)})", f"(none, {r.randrange(3)})"]),
            lambda: r.choice(["startswith", "endswith", "count", "find", "rfind"]) + f"({t()})",
            lambda: f"replace({t()}, {t()})" if r.random() < 0.7 else f"replace({t()}, {t()}, {r.randrange(3)})",
            lambda: f"join({self.sequence(max(d - 1, 0))})",
            lambda: r.choice(["partition", "rpartition", "removeprefix", "removesuffix"]) + f"({t()})",
            lambda: r.choice([f"zfill({r.randrange(8)})", f"ljust({r.randrange(9)})", f"rjust({r.randrange(9)}, '*')"]),
        ])()

    def text_filter(self, d):
        r, t = self.r, lambda: quote(self.r, self.r.choice(WORDS[:12]))
        return r.choice([
            lambda: r.choice(["trim", "upper", "lower", "title", "capitalize", "length", "list", "first", "last", "reverse", "string", "safe", "e", "wordcount", "int", "float", "count"]),
            lambda: f"replace({t()}, {t()})",
            lambda: f"indent({r.randrange(4)}" + r.choice(["", ", true", ", first=true", ", blank=true"]) + ")",
            lambda: f"default({t()}" + r.choice(["", ", true"]) + ")",
            lambda: f"truncate({r.randrange(3, 12)}" + r.choice(["", ", true", ", false, '..', 0"]) + ")",
            lambda: f"center({r.randrange(12)})",
            lambda: f"trim({t()})",
        ])()

    def sequence(self, d):
        """An expression that is probably a list."""
        r = self.r
        return r.choice([
            lambda: "messages",
            lambda: "[" + ", ".join(self.expr(max(d - 1, 0)) for _ in range(r.randrange(4))) + "]",
            lambda: "(" + "".join(self.expr(max(d - 1, 0)) + ", " for _ in range(r.randrange(1, 3))) + ")",
            lambda: f"range({r.randrange(-1, 5)})",
            lambda: f"range({r.randrange(4)}, {r.randrange(-3, 8)}, {r.choice([1, 2, -1, 3])})",
            lambda: f"{self.text(max(d - 1, 0))}.split({r.choice(['', quote(r, ','), quote(r, ' ')])})",
            lambda: f"{self.dict(max(d - 1, 0))}.{r.choice(['items', 'keys', 'values'])}()|list",  # views have the operators of sets
            lambda: f"{self.sequence(d - 1)}|{self.list_filter(d)}" if d else "messages",
            lambda: self.name(),
        ])()

    def list_filter(self, d):
        r = self.r
        key = r.choice(KEYS[:5])
        return r.choice([
            lambda: r.choice(["list", "reverse|list", "sort", "unique|list", "first", "last", "length", "sum", "min", "max", "sort(reverse=true)"]),
            lambda: f"map(attribute='{key}')|list",
            lambda: f"map(attribute='{key}', default=0)|list",
            lambda: f"map('{r.choice(['upper', 'length', 'string', 'trim', 'int'])}')|list",
            lambda: f"{r.choice(['selectattr', 'rejectattr'])}('{key}')|list",
            lambda: f"{r.choice(['selectattr', 'rejectattr'])}('{key}', '{r.choice(['equalto', 'eq', '==', 'ne', 'in'])}', {self.const()})|list",
            lambda: f"{r.choice(['selectattr', 'rejectattr'])}('{key}', '{r.choice(['defined', 'none', 'string', 'number'])}')|list",
            lambda: f"{r.choice(['select', 'reject'])}({r.choice(['', quote(r, 'string'), quote(r, 'odd'), quote(r, 'defined'), quote(r, 'none')])})|list",
            lambda: f"join({r.choice(['', quote(r, ', '), quote(r, '')])})",
            lambda: f"join('-', attribute='{key}')",
            lambda: f"batch({r.randrange(1, 4)}{r.choice(['', ', 0'])})|list",
            lambda: f"slice({r.randrange(1, 4)}{r.choice(['', ', 0'])})|list",
            lambda: f"groupby('{key}')|list",
            lambda: f"sort(attribute='{key}')",
            lambda: "tojson",
        ])()

    def dict(self, d):
        r = self.r
        return r.choice([
            lambda: "{" + ", ".join(f"{quote(r, r.choice(KEYS))}: {self.expr(max(d - 1, 0))}" for _ in range(r.randrange(4))) + "}",
            lambda: "dict(" + ", ".join(f"{k}={self.expr(max(d - 1, 0))}" for k in r.sample(KEYS, r.randrange(3))) + ")",
            lambda: "messages[0]",
            lambda: self.name(),
        ])()

    def number(self, d):
        r = self.r
        return r.choice([
            lambda: str(r.randrange(20)),
            lambda: f"{self.sequence(max(d - 1, 0))}|length",
            lambda: f"({self.number(d - 1)} {r.choice(['+', '-', '*', '//', '%', '/', '**'])} {self.number(d - 1)})" if d else "3",
            lambda: f"{self.expr(max(d - 1, 0))}|int",
            lambda: f"{r.choice(['2.5', '-1.25', '7', 'a'])}|round{r.choice(['', '(1)', '(0, %s)' % quote(r, 'floor'), '(1, %s)' % quote(r, 'ceil')])}",
            lambda: f"-{self.number(d - 1)}" if d else "1",
            lambda: r.choice(["1.5", "0.1", "1e3"]),
            lambda: f"({self.number(max(d - 1, 0))})|{r.choice(['abs', 'string', 'float', 'int'])}",
        ])()

    def test(self, d):
        r = self.r
        e = self.expr(max(d - 1, 0))
        return r.choice([
            lambda: f"{e} is {r.choice(['', 'not '])}{r.choice(['defined', 'none', 'string', 'mapping', 'iterable', 'sequence', 'number', 'boolean', 'true', 'false', 'undefined', 'integer', 'float', 'callable'])}",
            lambda: f"{self.number(max(d - 1, 0))} is {r.choice(['odd', 'even', 'divisibleby 3', 'divisibleby(2)', 'eq 2', 'gt(1)'])}",
            lambda: f"{e} {r.choice(['==', '!='])} {self.expr(max(d - 1, 0))}",
            lambda: f"{self.number(max(d - 1, 0))} {r.choice(['<', '<=', '>', '>='])} {self.number(max(d - 1, 0))}",
            lambda: f"{self.const()} {r.choice(['in', 'not in'])} {r.choice([self.sequence, self.dict, self.text])(max(d - 1, 0))}",
            lambda: f"{r.randrange(4)} < {self.number(0)} {r.choice(['<', '<=', '==', '!='])} {r.randrange(9)}",
            lambda: f"({e} {r.choice(['and', 'or'])} {self.expr(max(d - 1, 0))})",
            lambda: f"not {e}",
            lambda: f"{e} is {r.choice(['in', 'sameas'])} {r.choice(['[1, 2]', 'none', 'messages'])}",
        ])()

    def access(self, d):
        r = self.r
        make = r.choice([self.dict, self.sequence, lambda d: self.name()])
        key = r.choice(KEYS)
        ways = [f".{key}", f"['{key}']", f"[{r.randrange(-3, 3)}]", f".get('{key}'{r.choice(['', ', 0', ', none'])})"]
        if make != self.dict:  # jinja2 gives a slice of a constant dict another meaning than one of a variable
            ways.append("[" + r.choice(["", "1", "-2", "0"]) + ":" + r.choice(["", "2", "-1", "5"]) + r.choice(["", ":", ":-1", ":2", ":-2"]) + "]")
        return make(max(d - 1, 0)) + r.choice(ways)

    def expr(self, d):
        r = self.r
        if d <= 0:
            return r.choice([self.const, self.name, self.name])()
        return r.choice([
            lambda: self.const(),
            lambda: self.name(),
            lambda: self.text(d - 1),
            lambda: self.sequence(d - 1),
            lambda: self.dict(d - 1),
            lambda: self.number(d - 1),
            lambda: self.test(d - 1),
            lambda: self.access(d - 1),
            lambda: self.access(d - 1),
            lambda: f"({self.expr(d - 1)} if {self.test(d - 1)} else {self.expr(d - 1)})",
            lambda: f"{self.expr(d - 1)} if {self.test(d - 1)}",
            lambda: f"({self.expr(d - 1)} {r.choice(['+', '+', '*', '-'])} {self.expr(d - 1)})",
            lambda: f"{self.expr(d - 1)}|{r.choice(['tojson', 'tojson(indent=2)', 'tojson(separators=%s)' % repr((',', ':')), 'tojson(ensure_ascii=true)', 'tojson(sort_keys=true)', 'default(1)', 'd(%s, true)' % quote(r, 'x'), 'string', 'length', 'items|list', 'dictsort', 'list'])}",
            lambda: f"{r.choice(self.macros)}({', '.join(self.expr(d - 1) for _ in range(r.randrange(3)))})" if self.macros else self.name(),
            lambda: f"{quote(r, r.choice(['{}', '{0}-{0}', '{a}', '{:>5}', '{!r}']))}.format({r.choice(['', 'a=', ''])}{self.expr(d - 1)})",
        ])()

    # --- statements ---

    def tag(self, inner):
        r = self.r
        return "{%" + r.choice(["", "", "-", "+"]) + " " + inner + " " + r.choice(["", "", "-"]) + "%}"

    def gap(self):
        return self.r.choice(["", "", "\n", "  \n", " ", "\n  ", "text", "\n\n", "\t"])

    def printed(self, d):
        r = self.r
        e = self.expr(d)
        return "{{" + r.choice(["", "", "-"]) + " " + e + " " + r.choice(["", "", "-"]) + "}}"

    def body(self, d, n=None):
        return "".join(self.gap() + self.statement(d) + self.gap() for _ in range(n or self.r.randrange(1, 4)))

    def loop(self, d):
        r = self.r
        target = r.choice(["x", "x", "y", "x, y", "(x, y)"])
        seq = self.sequence(2) if "," not in target else r.choice([f"{self.dict(2)}.items()", f"{self.dict(2)}|items", f"{self.dict(1)}|dictsort", self.sequence(1)])
        where = f" if {self.test(1)}" if r.random() < 0.2 else ""
        self.loops += 1
        inner = self.body(d - 1)
        if r.random() < 0.2:
            inner += self.tag(f"if {self.test(1)}") + self.tag(r.choice(["break", "continue"])) + self.tag("endif") + self.gap()
        self.loops -= 1
        other = self.tag("else") + self.body(d - 1, 1) if r.random() < 0.2 else ""
        return self.tag(f"for {target} in {seq}{where}") + inner + other + self.tag("endfor")

    def condition(self, d):
        r = self.r
        out = self.tag(f"if {self.test(2)}") + self.body(d - 1)
        for _ in range(r.choice([0, 0, 1, 2])):
            out += self.tag(f"elif {self.test(2)}") + self.body(d - 1, 1)
        if r.random() < 0.5:
            out += self.tag("else") + self.body(d - 1, 1)
        return out + self.tag("endif")

    def macro(self, d):
        r = self.r
        name, loops = f"m{len(self.macros)}", self.loops
        params = r.choice(["", "x", "x, y=1", "x='d', y=none", "x, y, z=[]"])
        self.loops = 0
        body = self.body(d - 1)
        if r.random() < 0.2:
            body += "{{ caller() if caller else '' }}"
        self.loops = loops
        out = self.tag(f"macro {name}({params})") + body + self.tag("endmacro")
        self.macros.append(name)
        return out

    def captured(self, d, head, end):
        loops, self.loops = self.loops, 0
        out = self.tag(head) + self.body(d - 1) + self.tag(end)
        self.loops = loops
        return out

    def statement(self, d):
        r = self.r
        if d <= 0:
            return self.printed(2)
        return r.choice([
            lambda: self.printed(3),
            lambda: self.printed(3),
            lambda: self.loop(d),
            lambda: self.condition(d),
            lambda: self.tag(f"set {r.choice(LOCALS)} = {self.expr(3)}"),
            lambda: self.tag(f"set {r.choice(['x, y', '(y, z)'])} = {r.choice(['1, 2', self.sequence(1), quote(r, 'ab')])}"),
            lambda: self.tag("set ns = namespace(v=0, s='')") + self.gap() + self.loop(d) + self.tag(f"set ns.v = {self.expr(2)}") + "{{ ns.v }}",
            lambda: self.captured(d, f"set {r.choice(LOCALS)}{r.choice(['', ' | trim', ' | upper | trim'])}", "endset"),
            lambda: self.captured(d, f"filter {r.choice(['trim', 'upper', 'indent(2)', 'replace(%s, %s)' % (quote(r, 'a'), quote(r, 'b'))])}", "endfilter"),
            lambda: self.captured(d, f"with x = {self.expr(2)}, y = {self.expr(1)}", "endwith"),
            lambda: self.captured(d, "generation", "endgeneration"),
            lambda: self.macro(d) if len(self.macros) < 3 and not self.loops else self.printed(2),
            lambda: self.captured(d, f"call {r.choice(self.macros)}({self.expr(1)})", "endcall") if self.macros else self.printed(2),
            lambda: "{#" + r.choice(["", "-"]) + " comment " + r.choice(["", "-"]) + "#}",
            lambda: self.tag("raw") + r.choice(["{{ x }}", " {% if %} ", "\n  a\n"]) + self.tag("endraw"),
        ])()


def case(seed):
    """A template and three contexts."""
    r = random.Random(seed)
    m = Maker(r)
    return m.body(r.choice([1, 1, 2, 3])), [context(r) for _ in range(3)]
