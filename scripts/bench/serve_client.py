"""Clients of gpurun serve for scripts/bench/serve: requests and streams by asyncio, clients that leave, and a prober of /health."""
import asyncio
import http.client
import json
import multiprocessing
import pathlib
import random
import resource
import socket
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "tests" / "serve"))
from served import Served  # noqa: E402

WORDS = "the a little dog cat ball girl boy ran to big red house and said was happy sad with friend tree in sun play went home".split()
COMMON = "Once upon a time there was a little girl who had a red ball and a big dog. One day they went to the park to play. "


def quantile(values, q):
    """The smallest value that a share q of them does not exceed; 0 of none."""
    values = sorted(values)
    return values[min(len(values) - 1, int(q * len(values)))] if values else 0.0


class Server(Served):
    """A server that has to end well, unless it was killed."""

    def __exit__(self, *_):
        killed = self.process.poll() is not None
        super().__exit__()
        said = [x for x in self.lines if "Sanitizer" in x or "runtime error" in x]
        if said or (self.code and not killed):
            raise SystemExit(f"the server ended with {self.code}: {said or self.lines[-5:]}")


class Answer:
    """status; bodies: the parsed answer or the events of a stream; times: seconds from the request to each of them; whole: it
    was read to its end."""

    def __init__(self):
        self.status, self.bodies, self.times, self.whole = 0, [], [], False

    @property
    def text(self):
        return "".join(c["text"] for b in self.bodies if "choices" in b for c in b["choices"]) + "".join(
            b["content"] for b in self.bodies if "content" in b)

    @property
    def failed(self):
        """An error within a stream, whose status has been sent before it."""
        return self.status >= 500 or any("error" in b for b in self.bodies if self.status == 200)


class Client:
    """A client with a connection that it keeps between requests, unless it left or the server closed it."""

    def __init__(self, server):
        self.host, self.port, self.writer = server.host, server.port, None

    async def ask(self, path, body, leave=None):
        """leave: hang up after as many events of a stream, or as many seconds of another answer."""
        data = json.dumps(body).encode()
        for again in (True, False):
            if not self.writer or self.reader.at_eof():
                self.reader, self.writer = await asyncio.open_connection(self.host, self.port)
                again = False
            self.writer.write(f"POST {path} HTTP/1.1\r\nHost: {self.host}:{self.port}\r\nContent-Type: application/json\r\n"
                              f"Content-Length: {len(data)}\r\n\r\n".encode() + data)
            answer, begin = Answer(), time.perf_counter()
            try:
                limit = None if body.get("stream") else leave
                await asyncio.wait_for(self.read(answer, begin, leave if body.get("stream") else None), limit)
            except asyncio.TimeoutError:
                self.leave()
            except (asyncio.IncompleteReadError, ConnectionError):
                self.leave()
                if again and not answer.status:  # the server closed a connection that was idle
                    continue
                raise
            return answer

    async def read(self, answer, begin, leave):
        head = (await self.reader.readuntil(b"\r\n\r\n")).lower()
        answer.status = int(head.split()[1])
        if b"chunked" in head:
            await self.read_events(answer, begin, leave)
        else:
            data = await self.reader.readexactly(int(head.split(b"content-length:")[1].split()[0]))
            answer.bodies.append(json.loads(data))
            answer.times.append(time.perf_counter() - begin)
            answer.whole = True
        if self.writer and b"connection: close" in head:
            self.leave()

    async def read_events(self, answer, begin, leave):
        rest = b""
        while (size := int(await self.reader.readuntil(b"\n"), 16)):
            rest += (await self.reader.readexactly(size + 2))[:-2]
            *events, rest = rest.split(b"\n\n")
            for event in events:
                if event.startswith(b"data: {"):
                    answer.bodies.append(json.loads(event[6:]))
                    answer.times.append(time.perf_counter() - begin)
                if leave is not None and len(answer.bodies) >= leave:
                    self.leave()
                    return
        await self.reader.readexactly(2)
        answer.whole = True

    def leave(self):
        if self.writer:
            random.choice((self.writer.close, self.writer.transport.abort))()
        self.writer = None


def random_request(r, most_tokens, most_words):
    """A path and a body; the answer follows from the body alone."""
    words = " ".join(r.choices(WORDS, k=r.choice([k for k in (1, 4, 16, 50, 120) if k <= most_words])))
    body = {"prompt": (COMMON if r.random() < 0.4 else "") + words, "temperature": r.choice((0, 0.8)), "seed": r.randrange(1 << 31),
            "max_tokens": r.randint(1, most_tokens if r.random() < 0.6 else 3 * most_tokens), "stream": r.random() < 0.5}
    body |= r.choice(({}, {}, {"ignore_eos": True}, {"repeat_penalty": 1.2, "top_k": 20}, {"stop": [" she", "!"]},
                      {"grammar": 'root ::= ("yes" | "no") (" " [a-z]+){1,9}'}))
    return r.choice(("/v1/completions", "/completion")), body


def metrics(server):
    """Figures of /metrics by their names without "gpurun:"."""
    lines = server.get("/metrics")[1].splitlines()
    return {line.split()[0].removeprefix("gpurun:"): float(line.split()[-1]) for line in lines if not line.startswith("#")}


def wait_until_idle(server):
    end = time.monotonic() + 60
    while time.monotonic() < end:
        m = metrics(server)
        if not m["requests_running"] + m["requests_waiting"]:
            break
        time.sleep(0.05)
    return m


def memory(server):
    """Resident bytes of the server."""
    with open(f"/proc/{server.process.pid}/statm", encoding="ascii") as f:
        return int(f.read().split()[1]) * 4096


def most_memory(server):
    """The most resident bytes that it has had."""
    with open(f"/proc/{server.process.pid}/status", encoding="ascii") as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith("VmHWM"))


def probe(host, port, stop, pipe):
    """Asks /health on one connection, 50 times a second; sends the milliseconds of each, None: another status than 200, or none."""
    c = http.client.HTTPConnection(host, port, timeout=10)
    found = []
    while not stop.wait(0.02):
        begin = time.perf_counter()
        try:
            c.request("GET", "/health")
            r = c.getresponse()
            r.read()
            found.append((time.perf_counter() - begin) * 1e3 if r.status == 200 else None)
        except (OSError, http.client.HTTPException):
            found.append(None)
            c.close()
    pipe.send(found)


class Prober:
    """`with Prober(server) as p`: then p.ms, and p.failed, in a process of its own."""

    def __init__(self, server):
        self.stop, (self.here, there) = multiprocessing.Event(), multiprocessing.Pipe()
        self.process = multiprocessing.Process(target=probe, args=(server.host, server.port, self.stop, there), daemon=True)

    def __enter__(self):
        self.process.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        found = self.here.recv()
        self.process.join()
        self.ms = [t for t in found if t is not None]
        self.failed = len(found) - len(self.ms)

    def __str__(self):
        return (f"p50 {quantile(self.ms, 0.5):.1f}, p99 {quantile(self.ms, 0.99):.1f}, max {max(self.ms, default=0):.1f} ms of "
                f"{len(self.ms)}, {self.failed} failed")


def raise_descriptors():
    """Raises the limit of descriptors as far as the system allows; the limit before and after."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(hard, 40000), max(hard, 40000)))
    except (ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return soft, resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def open_sockets(server, n):
    """At most n connections that do nothing; fewer when the system allows no more."""
    found = []
    for _ in range(n):
        try:
            s = socket.create_connection((server.host, server.port))
        except OSError:
            break
        s.setblocking(False)
        found.append(s)
    return found


def trickle(sockets, until):
    """Sends a byte of a header to each once a second; returns how many are open, second by second."""
    head, live, counts = b"GET /health HTTP/1.1\r\nX: " + b"x" * 1000, list(sockets), []
    at = 0
    while time.monotonic() < until:
        begin, still = time.monotonic(), []
        for s in live:
            try:
                s.send(head[at:at + 1])
                s.recv(1)  # the end, or an answer to half a request
            except BlockingIOError:
                still.append(s)
                continue
            except OSError:
                pass
            s.close()
        live, at = still, at + 1
        counts.append(len(live))
        if not live:
            break
        time.sleep(max(0, begin + 1 - time.monotonic()))
    return counts


def is_open(s):
    try:
        return bool(s.recv(1))
    except BlockingIOError:
        return True
    except OSError:
        return False


def slope(points):
    """Of the line through (x, y) by least squares; 0 of fewer than two."""
    x, y = [p[0] for p in points], [p[1] for p in points]
    return statistics.linear_regression(x, y).slope if len(set(x)) > 1 else 0.0
