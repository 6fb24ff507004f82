"""jinja2 as transformers sets it up for chat templates, and gpurun's engine, as two functions from a template and contexts to results."""
import json
import re
import resource
import subprocess
from datetime import datetime, timezone

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

ADDRESS = re.compile(rb"(<[\w.' -]* (object|of \w+ object) (at|bt) 0x[0-9A-Fa-f]+>)|<(bound method|function) [^>]*>|<class '[^']*'>", re.I)
OBJECT = re.compile(rb"<\w+ object>", re.I)
NOW = datetime(2024, 7, 26, 12, 0, 0, tzinfo=timezone.utc)


class Generation(jinja2.ext.Extension):
    """`generation` blocks mark what an assistant wrote; the text is their body."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters.update(tojson=tojson, from_json=json.loads)
    env.globals.update(raise_exception=raise_exception, strftime_now=NOW.strftime)
    return env


ENV = environment()


def theirs(template, contexts):
    """Results of jinja2: ("O", text) or ("E", message) for each context, which is JSON text."""
    try:
        t = ENV.from_string(template)
    except Exception as e:  # whatever Python raises is an error of the template
        return [("E", f"{type(e).__name__}: {e}")] * len(contexts)
    out = []
    for c in contexts:
        try:
            out.append(("O", t.render(**json.loads(c)).encode("utf-8")))
        except Exception as e:
            out.append(("E", f"{type(e).__name__}: {e}"))
    return out


def limit_memory():
    """Bounds what jinja2 may take: more is an error of the template."""
    resource.setrlimit(resource.RLIMIT_AS, (2 << 30, resource.getrlimit(resource.RLIMIT_AS)[1]))


def lift_limit():
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))


class Ours:
    """The program render_templates, which is kept running."""

    def __init__(self, program):
        self.program, self.p = program, None

    def send(self, kind, data):
        self.p.stdin.write(b"%s %d\n" % (kind, len(data)) + data)

    def read(self):
        head = self.p.stdout.readline()
        if not head:
            raise RuntimeError(f"{self.program} ended with {self.p.wait()}")
        kind, n = head.split()
        data = self.p.stdout.read(int(n))
        return (kind.decode(), data if kind == b"O" else data.decode())

    def __call__(self, template, contexts):
        if not self.p:
            self.p = subprocess.Popen([self.program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={"TZ": "UTC"}, preexec_fn=lift_limit)
        self.send(b"T", template.encode())
        out = []
        for c in contexts:
            self.send(b"C", c.encode())
            self.p.stdin.flush()
            out.append(self.read())
        return out


def agrees(ours, theirs):
    """The same text, but for addresses in memory, which Python prints of some objects; or both are errors."""
    if theirs[0] == "E" or ours[0] == "E":
        return ours[0] == theirs[0]
    return ours[1] == theirs[1] or ADDRESS.sub(b"", theirs[1]) == OBJECT.sub(b"", ours[1])
