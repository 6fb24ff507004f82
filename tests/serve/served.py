"""A server to test: `with Served(PROGRAM, words) as s`, then s.post(path, body), s.stream(path, body)."""

import http.client
import json
import re
import signal
import subprocess
import threading
import time

LIMIT = 120  # seconds for anything


class Served:
    ends = (0, 128 + signal.SIGTERM)  # codes of an end without fault; others have what was said printed

    def __init__(self, program, words=()):
        self.words = [program, "serve", "--host", "127.0.0.1", "--port", "0", "--no-warmup", *words]
        self.lines = []

    def __enter__(self):
        self.process = subprocess.Popen(self.words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace")
        found = threading.Event()

        def read():
            for line in self.process.stderr:
                self.lines.append(line)
                address = re.search(r"http://([0-9.]+):(\d+)", line)
                if address:
                    self.host, self.port = address[1], int(address[2])
                    found.set()

        self.reader = threading.Thread(target=read, daemon=True)
        self.reader.start()
        end = time.monotonic() + LIMIT
        while not found.wait(0.02) and self.process.poll() is None and time.monotonic() < end:
            pass
        if not found.is_set():
            self.process.kill()
            self.reader.join(LIMIT)
            raise SystemExit("the server does not come up:\n" + "".join(self.lines))
        while self.get("/health")[0] != 200 and time.monotonic() < end:
            time.sleep(0.02)
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.code = self.process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.code = "hangs"
        self.reader.join(LIMIT)
        if self.code not in self.ends:
            print(*self.words, f"ended with {self.code}:", *self.lines[-40:], sep="\n", flush=True)

    @property
    def url(self):
        return f"http://{self.host}:{self.port}"

    def connect(self):
        return http.client.HTTPConnection(self.host, self.port, timeout=LIMIT)

    def call(self, method, path, body=None):
        c = self.connect()
        c.request(method, path, json.dumps(body) if body is not None else None, {"Content-Type": "application/json"})
        r = c.getresponse()
        data = r.read()
        c.close()
        kind = r.headers.get("Content-Type", "")
        return r.status, json.loads(data) if kind.startswith("application/json") else data.decode()

    def get(self, path):
        return self.call("GET", path)

    def metric(self, *names):
        """The sum of the metrics whose lines begin so."""
        return sum(float(line.split()[-1]) for line in self.get("/metrics")[1].splitlines() if line.startswith(names))

    def requests(self):
        """The number of requests that run or wait."""
        return self.metric("gpurun:requests_running", "gpurun:requests_waiting")

    def post(self, path, body):
        """The answer, which must be good."""
        status, answer = self.call("POST", path, body)
        assert status == 200, (path, body, status, answer)
        return answer

    def refused(self, path, body):
        """Status and error."""
        status, answer = self.call("POST", path, body)
        assert status != 200, (path, body, answer)
        return status, answer["error"]

    def stream(self, path, body):
        """The events of a stream, [DONE] included as None; lines of JSON without "data: " too."""
        c = self.connect()
        c.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        r = c.getresponse()
        assert r.status == 200, (path, body, r.read())
        events = []
        for line in r.read().decode().split("\n"):
            text = line.removeprefix("data: ")
            if text == "[DONE]":
                events.append(None)
            elif text.startswith("{"):
                events.append(json.loads(text))
        c.close()
        return events
