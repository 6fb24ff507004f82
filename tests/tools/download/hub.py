"""A hub on the loopback, as far as downloads use it: the API of branches and files, /resolve/ that redirects to a second server
with the contents, plain files by URL, and everything that can go wrong on the way."""

import hashlib
import http.server
import json
import re
import socket
import ssl
import threading
import time
import urllib.parse

PIECE = 1 << 14


def sha256(data):
    return hashlib.sha256(data).hexdigest()


class Quiet(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request, address):
        pass  # a client that goes away in the middle is what is tested


class Hub:
    """Two servers: `url`, the hub, and `cdn`, where its contents are. What they do is set by the attributes; `log` has a
    (server, path, headers, status, bytes of the body sent) of each request."""

    def __init__(self, certificate=None):
        self.lock = threading.Lock()
        self.servers = {}
        for name in ("hub", "cdn"):
            handler = type(name, (Handler,), {"hub": self, "side": name})
            server = Quiet(("127.0.0.1", 0), handler)
            if certificate:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.load_cert_chain(certificate)
                server.socket = context.wrap_socket(server.socket, server_side=True)
            threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
            self.servers[name] = server
        scheme = "https" if certificate else "http"
        self.url = f"{scheme}://127.0.0.1:{self.servers['hub'].server_address[1]}"
        self.cdn = f"{scheme}://127.0.0.1:{self.servers['cdn'].server_address[1]}"
        self.reset()

    def reset(self):
        self.repos = {}  # name: {"commit": .., "files": {path: bytes}}
        self.plain = {}  # path on the hub: bytes
        self.etags = {}  # path: ETag of a plain file; None: it has none
        self.dates = {}  # path: Last-Modified
        self.token = None  # what the hub wants to see
        self.gated = False  # 403 in place of 401
        self.plain_errors = False  # errors without JSON
        self.errors = []  # (pattern of paths, status, headers), each answered once
        self.drops = []  # bytes of a body after which the next connections end
        self.stall = 0  # seconds of silence in the place of such an end
        self.pause = 0  # seconds between pieces of a body
        self.ranges = True  # whether Range is understood
        self.shift = 0  # what is wrong with the first byte of a 206
        self.lengths = {}  # path: Content-Length; None: left out
        self.sizes = {}  # path in a repository: size in the list
        self.oids = {}  # path: oid in the list
        self.extra = []  # further entries of the list
        self.git = set()  # paths without LFS
        self.page = 0  # files of a page of the list; 0: all
        self.next = None  # URL of the next page, whichever there is
        self.redirects = {}  # path: URL
        self.linked = {}  # path: X-Linked-Etag of a plain file
        self.raw = {}  # path: (headers, body) sent as they are
        self.corrupt = set()  # paths whose contents change on the way
        self.log = []
        self.at_once = {}  # path: responses under way, and the most of them

    def forget(self):
        """Begins a new log: what answers earlier requests is still writing to the old one."""
        self.log = []

    def close(self):
        for s in self.servers.values():
            s.shutdown()
            s.server_close()

    def add(self, repo, files, commit=None):
        commit = commit or hashlib.sha1(repr((repo, sorted(files.items()))).encode()).hexdigest()
        self.repos[repo] = {"commit": commit, "files": files}
        return commit

    def requests(self, side=None, text=""):
        return [r for r in self.log if (side is None or r[0] == side) and text in r[1]]

    # what is answered

    def tree(self, repo):
        entries = [{"type": "directory", "oid": "0" * 40, "size": 0, "path": "folder"}]
        for path, data in self.repos[repo]["files"].items():
            size = self.sizes.get(path, len(data))
            entry = {"type": "file", "path": path, "size": size}
            if path in self.git:
                entry["oid"] = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
            else:
                entry["oid"] = hashlib.sha1(path.encode()).hexdigest()
                entry["lfs"] = {"oid": self.oids.get(path, sha256(data)), "size": size, "pointerSize": 134}
            entries.append(entry)
        return entries + self.extra


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # head and body of an answer are two writes
    hub = side = None

    def log_message(self, *args):
        pass

    def reply(self, status, headers=(), body=b""):
        self.note(status, len(body))
        self.send_response(status)
        for k, v in dict(headers).items():
            self.send_header(k, v)
        if "Content-Length" not in dict(headers):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def reply_json(self, value, headers=()):
        self.reply(200, {"Content-Type": "application/json", **dict(headers)}, json.dumps(value).encode())

    def note(self, status, n):
        with self.hub.lock:
            self.log.append((self.side, self.path, dict(self.headers), status, n))

    def refuse(self, status, text, headers=()):
        self.reply(status, {"Content-Type": "application/json", **dict(headers)}, json.dumps({"error": text}).encode())

    def do_GET(self):
        h, path = self.hub, self.path.split("?")[0]
        self.log = h.log
        with h.lock:
            error = next((e for e in h.errors if re.search(e[0], self.path)), None)
            if error:
                h.errors.remove(error)
        if error and h.plain_errors:
            self.reply(error[1], error[2], b"<html>no</html>")
        elif error:
            self.refuse(error[1], "not now", error[2])
        elif path in h.raw:
            headers, body = h.raw[path]
            self.note(200, len(body))
            self.wfile.write(headers + body)
            self.close_connection = True
        elif path in h.redirects:
            self.reply(302, {"Location": h.redirects[path]})
        elif path in h.plain:
            linked = {"X-Linked-Etag": h.linked[path]} if path in h.linked else {}
            self.content(path, h.plain[path], h.etags.get(path, f'"{sha256(h.plain[path])[:16]}"'), linked)
        elif self.side == "cdn":
            repo, name = re.fullmatch(r"/([^/]+/[^/]+)/(.+)", urllib.parse.unquote(path)).groups()
            data = h.repos[repo]["files"][name]
            self.content(name, data, f'"{sha256(data)}"')
        elif h.token and self.headers.get("Authorization") != f"Bearer {h.token}":
            self.refuse(403 if h.gated else 401, "access to this repository is restricted")
        else:
            self.api(path)

    def api(self, path):
        h = self.hub
        api = re.fullmatch(r"/api/models/([^/]+/[^/]+)/(refs|tree/\w+)", path)
        file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/(\w+)/(.+)", path)
        repo = h.repos.get((api or file).group(1)) if api or file else None
        if not repo:
            self.refuse(404, "Repository not found")
        elif api and api.group(2) == "refs":
            branches = [{"name": "other", "ref": "refs/heads/other", "targetCommit": "f" * 40},
                        {"name": "main", "ref": "refs/heads/main", "targetCommit": repo["commit"]}]
            self.reply_json({"tags": [], "branches": branches, "converts": []})
        elif api:
            self.list(api.group(1), path)
        elif file.group(2) == repo["commit"]:
            data = repo["files"].get(urllib.parse.unquote(file.group(3)))
            if data is None:
                self.refuse(404, "Entry not found")
            else:
                self.reply(302, {"Location": f"{h.cdn}/{file.group(1)}/{file.group(3)}?Signature=secret",
                                 "X-Linked-Etag": f'"{sha256(data)}"', "X-Linked-Size": str(len(data))})
        else:
            self.refuse(404, "Revision not found")

    def list(self, repo, path):
        entries = self.hub.tree(repo)
        n = self.hub.page or len(entries)
        at = int((re.search(r"cursor=(\d+)", self.path) or [0, 0])[1])
        more = f"{self.hub.url}{path}?recursive=true&cursor={at + n}" if at + n < len(entries) else None
        more = self.hub.next or more
        self.reply_json(entries[at:at + n], {"Link": f'<{more}>; rel="next"'} if more else {})

    def content(self, path, data, etag, headers=()):
        """A file, or a part of it, with everything that is set to go wrong."""
        h = self.hub
        headers = {**dict(headers), "Accept-Ranges": "bytes" if h.ranges else "none"}
        date = h.dates.get(path)
        if etag:
            headers["ETag"] = etag
        if date:
            headers["Last-Modified"] = date
        if etag and self.headers.get("If-None-Match") == etag:
            self.reply(304, headers)
            return
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", "")) if h.ranges else None
        if self.headers.get("If-Range") not in (None, etag, date):
            asked = None
        at = int(asked.group(1)) if asked else 0
        if asked and at >= len(data):
            self.reply(416, {**headers, "Content-Range": f"bytes */{len(data)}"})
            return
        if asked:
            headers["Content-Range"] = f"bytes {at + h.shift}-{len(data) - 1}/{len(data)}"
        length = h.lengths.get(path, len(data) - at)
        if length is not None:
            headers["Content-Length"] = str(length)
        else:
            headers["Connection"] = "close"
        self.send_response(206 if asked else 200)
        for k, v in headers.items():
            self.send_header(k, v)
        self.end_headers()
        if path in h.corrupt:
            data = data[:-1] + bytes([data[-1] ^ 1])
        self.send(path, data[at:], 206 if asked else 200, length)

    def send(self, path, data, status, length):
        h = self.hub
        with h.lock:
            drop = h.drops.pop(0) if h.drops else None
            now, most = h.at_once.get(path, (0, 0))
            h.at_once[path] = (now + 1, max(most, now + 1))
        sent = 0
        try:
            while sent < len(data):
                n = min(PIECE, len(data) - sent, (drop - sent) if drop is not None else PIECE)
                if n <= 0:
                    break
                self.wfile.write(data[sent:sent + n])
                sent += n
                time.sleep(h.pause)
            if drop is not None and h.stall:
                time.sleep(h.stall)
        except OSError:
            pass
        with h.lock:
            now, most = h.at_once[path]
            h.at_once[path] = (now - 1, most)
        self.note(status, sent)
        if sent < len(data) or length is None or length != len(data):
            self.close_connection = True
            try:
                self.connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
