"""Checks deploy/nginx.conf in a running nginx: its headers about clients, and its retries at a second replica. `nginx.py CONFIGURATION`."""

import http.client
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from forwarded import removed

PATIENCE_SECS = 30
# Headers that nginx sets itself; no value of a client may pass.
SAID = ["X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Forwarded-Port", "X-Real-IP"]
CLAIM = "claimed-by-the-client"


class Wrong(Exception):
    pass


def require(holds, what):
    if not holds:
        raise Wrong(what)


class Replica:
    """A server that records one request on each connection and answers it, or closes the connection."""

    def __init__(self, answer):
        self.answer, self.seen = answer, []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            connection, _ = self.listener.accept()
            with connection, connection.makefile("rb") as lines:
                head = []
                while (line := lines.readline().strip()):
                    head.append(line.decode())
                lengths = [int(line.split(":")[1]) for line in head if line.lower().startswith("content-length:")]
                lines.read(sum(lengths))
                self.seen.append(head)
                if self.answer:
                    connection.sendall(f"HTTP/1.1 {self.answer} X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


class Nginx:
    """nginx in front of one replica, and a backup that is used only after the first has failed."""

    def __init__(self, text, first, second):
        self.port = free_port()
        text = text.replace("listen 8000", f"listen 127.0.0.1:{self.port}").replace("/dev/stdout", "/dev/null")
        servers = f"server 127.0.0.1:{first}; server 127.0.0.1:{second} backup;"
        self.text, replaced = re.subn(r"server 127\.0\.0\.1:8080;", servers, text)
        require(replaced == 1, "the configuration has no server to replace")

    def __enter__(self):
        self.prefix = tempfile.TemporaryDirectory()
        file = Path(self.prefix.name) / "nginx.conf"
        file.write_text(self.text)
        self.process = subprocess.Popen(["nginx", "-p", self.prefix.name, "-e", "/dev/null", "-g", "daemon off;", "-c", file], stderr=subprocess.DEVNULL)
        until = time.monotonic() + PATIENCE_SECS
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                return self
            except OSError:
                require(self.process.poll() is None and time.monotonic() < until, "nginx does not listen")
                time.sleep(0.02)

    def post(self, headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_SECS)
        connection.request("POST", "/mcp", "{}", headers)
        return connection.getresponse().status

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(PATIENCE_SECS)
        self.prefix.cleanup()


def claims_end_here(text):
    replica = Replica("200")
    with Nginx(text, replica.port, replica.port) as nginx:
        nginx.post({name: CLAIM for name in removed() + SAID})
    [head] = replica.seen
    left = [line for line in head if CLAIM in line]
    require(not left, f"nginx forwards {left}")
    said = {line.split(":")[0] for line in head}
    require(said >= set(SAID), f"nginx does not set {set(SAID) - said}")


def no_post_is_sent_twice(text):
    for answer, status in (("503", 503), (None, 502)):
        first, second = Replica(answer), Replica("200")
        with Nginx(text, first.port, second.port) as nginx:
            told = nginx.post({})
        require((len(first.seen), len(second.seen), told) == (1, 0, status), f"after {answer}: {told}, and {len(second.seen)} at the next replica")


def an_unreachable_replica_is_skipped(text):
    second = Replica("200")
    with Nginx(text, free_port(), second.port) as nginx:
        require(nginx.post({}) == 200, "a replica that cannot be connected to fails a call")


def check(text):
    claims_end_here(text)
    no_post_is_sent_twice(text)
    an_unreachable_replica_is_skipped(text)


def main(file):
    text = Path(file).read_text()
    check(text)
    cut = re.sub(r"\n *proxy_set_header X-Forwarded-User .*", "", text)
    policies = ["error timeout non_idempotent", "error timeout http_503 non_idempotent", "http_503 non_idempotent"]
    for broken in [cut, *(text.replace("proxy_next_upstream error timeout;", f"proxy_next_upstream {policy};") for policy in policies)]:
        require(broken != text, "nothing was broken")
        try:
            check(broken)
        except Wrong:
            continue
        raise Wrong("a configuration that forwards a client's claims, or sends a POST twice, is accepted")
    print("test-nginx: a client's claims end at nginx, and no POST is sent twice")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except Wrong as error:
        sys.exit(f"deploy/test/nginx.py: {error}")
