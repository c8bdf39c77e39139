"""Tool calls as clients in Go make them, which are not in this suite: `go_reader.py READER FLAG...`.

The readers of event streams are those of released SDKs, line for line. Each takes what it does not know for the loss of the server:

READER       the SDK
`go-sdk-1.1` official SDK 1.1.0: decodes the data of every event, whatever its type
`go-sdk-1.3` official SDK 1.2.0 to 1.3.0: decodes the data of events without a type, or of the type `message`
`scanner`    a reader on `bufio.Scanner`, whose lines have at most 64 KiB, and that knows no comments
"""

import asyncio
import contextlib
import json
import sys
from urllib.parse import urlsplit

READER = sys.argv.pop(1)

from common import flags, leave, linger, main, make_calls, on_progress, say, say_connected, say_result  # noqa: E402

VERSION = "2025-06-18"
FIELDS = ("event", "id", "data", "retry")
LINE_MAX = 64 * 1024
# As the official SDK: tries to resume, and the pause before each.
TRIES, PAUSE = 5, 1.0


def report(what):
    say("error", message=f"reported: {what}")
    leave()


class Lost(Exception):
    """The connection ended before the response."""


class Events:
    """The reader of one event stream."""

    def __init__(self, lines):
        self.lines = lines
        self.last_id = None

    async def __aiter__(self):
        event = {}
        async for line in self.lines:
            if line:
                self.field(event, line)
                continue
            if event:
                self.last_id = event.get("id", self.last_id)
                yield event
            event = {}

    def field(self, event, line):
        if len(line) > LINE_MAX and READER == "scanner":
            report("bufio.Scanner: token too long")
        name, colon, value = line.partition(":")
        if not colon:
            report(f"malformed line in SSE stream: {line!r}")
        # The official SDK skips a name that it does not know, such as the empty one of a comment.
        if name in FIELDS:
            value = value.removeprefix(" ")
            event[name] = f"{event[name]}\n{value}" if name == "data" and "data" in event else value
        elif name or READER == "scanner" and value.strip() and not value.startswith(" "):
            report(f"unknown field {name!r}")

    def message(self, event):
        """Returns the message of an event, or `None` for one that this reader skips."""
        if READER != "go-sdk-1.1" and event.get("event", "message") != "message":
            return None
        if READER == "scanner" and set(event) <= {"retry"}:
            return None
        try:
            return json.loads(event.get("data", ""))
        except ValueError:
            report(f"unexpected end of JSON input: {event}")


class Server:
    """The endpoint; each request has a connection of its own."""

    def __init__(self, url):
        parts = urlsplit(url)
        self.host, self.port, self.path = parts.hostname, parts.port, parts.path
        self.session = None

    async def request(self, method, body=b"", **extra):
        """Sends a request; returns the status, the headers, and the lines of the body."""
        headers = {
            "Host": f"{self.host}:{self.port}",
            "User-Agent": "Go-http-client/1.1",
            "Accept": "application/json, text/event-stream" if method == "POST" else "text/event-stream",
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            "Accept-Encoding": "gzip",
            **({"Mcp-Session-Id": self.session, "Mcp-Protocol-Version": VERSION} if self.session else {}),
            **extra,
        }
        reader, writer = await asyncio.open_connection(self.host, self.port, limit=1 << 24)
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        writer.write(f"{method} {self.path} HTTP/1.1\r\n{head}\r\n".encode() + body)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        except (OSError, asyncio.IncompleteReadError) as error:
            raise Lost(error) from error
        fields = dict(line.lower().split(": ", 1) if ": " in line else (line.lower(), "") for line in head[1:] if line)
        session = next((line.split(": ", 1)[1] for line in head if line.lower().startswith("mcp-session-id: ")), None)
        self.session = self.session or session
        return int(head[0].split()[1]), fields, self.lines(fields, reader, writer)

    async def lines(self, headers, reader, writer):
        """Yields the lines of a body until its end; raises `Lost` if its connection ends before."""
        rest = b""
        try:
            async for piece in pieces(headers, reader):
                *whole, rest = (rest + piece).split(b"\n")
                for line in whole:
                    yield line.removesuffix(b"\r").decode()
        except (OSError, asyncio.IncompleteReadError) as error:
            raise Lost(error) from error
        finally:
            writer.close()
        if rest:
            yield rest.decode()

    async def call(self, message, on_message=None):
        """Sends a request and returns its response; resumes its stream if the connection ends."""
        events, tries = None, 0
        while True:
            try:
                if events is None:
                    _, headers, lines = await self.request("POST", json.dumps(message).encode())
                    if not headers.get("content-type", "").startswith("text/event-stream"):
                        return json.loads("\n".join([line async for line in lines]))
                else:
                    status, _, lines = await self.request("GET", **{"Last-Event-ID": events.last_id})
                    if status != 200:
                        report(f"HTTP status {status} to a resume")
                events = follow(events, lines)
                async for event in events:
                    received = events.message(event)
                    if received is None:
                        continue
                    if received.get("id") == message["id"]:
                        return received
                    if on_message:
                        await on_message(received)
            except Lost as error:
                if events is None:
                    raise
                lost = error
            else:
                lost = "the stream ended"
            tries += 1
            if events.last_id is None or tries > TRIES:
                report(lost)
            await asyncio.sleep(PAUSE)

    async def notify(self, method):
        status, _, _ = await self.request("POST", json.dumps({"jsonrpc": "2.0", "method": method}).encode())
        if status != 202:
            report(f"HTTP status {status} to {method}")

    async def standalone(self):
        """Reads the session's GET stream for as long as it lasts."""
        status, _, lines = await self.request("GET")
        if status == 405:
            return
        events = Events(lines)
        with contextlib.suppress(Lost):
            async for event in events:
                events.message(event)


def follow(before, lines):
    """Returns the reader of the next response of a stream."""
    events = Events(lines)
    events.last_id = before.last_id if before else None
    return events


async def pieces(headers, reader):
    """Yields the pieces of a body."""
    if "chunked" in headers.get("transfer-encoding", ""):
        while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
            yield (await reader.readexactly(size + 2))[:-2]
    elif "content-length" in headers:
        yield await reader.readexactly(int(headers["content-length"]))
    else:
        while piece := await reader.read(1 << 16):
            yield piece


async def session():
    server = Server(flags.url)
    opening = {"protocolVersion": VERSION, "capabilities": {}, "clientInfo": {"name": READER, "version": "1"}}
    opened = await server.call({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": opening})
    await server.notify("notifications/initialized")
    standalone = asyncio.create_task(server.standalone())
    say_connected(opened["result"]["protocolVersion"])

    async def told(message):
        if message.get("method") == "notifications/progress":
            await on_progress(message["params"]["progress"])

    async def call(tool, arguments):
        params = {"name": tool, "arguments": arguments, "_meta": {"progressToken": 2}}
        made = await server.call({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params}, told)
        if "error" in made:
            say("error", message=made["error"]["message"])
        else:
            say_result(made["result"].get("isError", False), made["result"]["content"][0]["text"])
        await server.call({"jsonrpc": "2.0", "id": 3, "method": "tools/list", "params": {}})

    await make_calls(call)
    await linger()
    standalone.cancel()


main(session)
