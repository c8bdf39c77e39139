"""Shared parts of the tests with running processes: an MCP server, a proxy, and a call with its resume."""

import http.client
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PATIENCE_SECS = 60


class Server(BaseHTTPRequestHandler):
    """A minimal MCP server: each call is answered by a message and a result, as events."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        message = '{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"hello"}}'
        result = '{"jsonrpc":"2.0","id":1,"result":{}}'
        self.wfile.write(f"data: {message}\n\ndata: {result}\n\n".encode())
        self.close_connection = True

    def do_GET(self):
        self.send_error(405)

    def log_message(self, *_):
        pass


def serve(port=0):
    """Starts the server; returns its address."""
    server = ThreadingHTTPServer(("127.0.0.1", port), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"127.0.0.1:{server.server_port}"


class Proxy:
    """A running `mcp-resume serve`, for one `with` block; ended by SIGTERM."""

    def __init__(self, command, environment):
        self.process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

    def __enter__(self):
        # Both addresses are printed before the proxy accepts requests.
        self.data = self.said("listening on http://").split("/")[0]
        self.admin = self.said("admin on http://")
        return self

    def said(self, before):
        line = self.process.stdout.readline()
        if not line.startswith(before):
            self.process.kill()
            raise SystemExit(f"the proxy printed {line!r}, not {before}…")
        return line.removeprefix(before).strip()

    def __exit__(self, failure, *_):
        self.process.terminate()
        code = self.process.wait(PATIENCE_SECS)
        # A failure within the block is the one to report.
        if code != 0 and failure is None:
            raise SystemExit(f"the proxy ended with {code}")


def request(address, method, path, body=None, **headers):
    connection = http.client.HTTPConnection(address, timeout=PATIENCE_SECS)
    connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
    response = connection.getresponse()
    return response.status, response.read().decode()


def call_and_resume(address):
    """Makes a call, and resumes it after its first event."""
    accept = {"Accept": "application/json, text/event-stream", "MCP_Protocol_Version": "2025-11-25"}
    call = '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t"}}'
    status, stream = request(address, "POST", "/mcp", call, Content_Type="application/json", **accept)
    ids = [line.removeprefix("id: ") for line in stream.splitlines() if line.startswith("id: ")]
    assert status == 200 and len(ids) == 3 and "hello" in stream and '"result"' in stream, (status, stream)
    status, rest = request(address, "GET", "/mcp", Last_Event_ID=ids[1], **accept)
    assert status == 200 and '"result"' in rest and "hello" not in rest, (status, rest)
