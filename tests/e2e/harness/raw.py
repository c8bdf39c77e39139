"""A client of bare requests, for behaviour that no SDK has: repeating a request byte for byte, resetting at any point."""

import asyncio
import json
import re

from harness.relay import BLOCK_END, parse_event, parse_head, read_body, sever

ACCEPT = "application/json, text/event-stream"


class Response:
    """One HTTP response; `events` are those of a stream read so far."""

    def __init__(self, status, headers, reader, writer):
        self.status, self.headers = status, headers
        self._pieces = read_body(headers, reader)
        self._writer = writer
        self._pending = b""

    async def body(self):
        """The whole body; closes the connection."""
        whole = b"".join([piece async for piece in self._pieces])
        self._writer.close()
        return whole

    async def json(self):
        return json.loads(await self.body())

    async def event(self):
        """The next event of the stream, empty ones included; None at its end."""
        while True:
            if end := BLOCK_END.search(self._pending):
                block, self._pending = self._pending[: end.end()], self._pending[end.end() :]
                event = parse_event(block)
                if event is not None:
                    return event
                continue
            piece = await anext(self._pieces, None)
            if piece is None:
                return None
            self._pending += piece

    async def messages(self):
        """The JSON-RPC messages up to the end of the response, which is a stream or JSON."""
        if not self.headers.get("content-type", "").startswith("text/event-stream"):
            return [await self.json()]
        found = []
        while event := await self.event():
            if event.data:
                found.append(json.loads(event.data))
        self._writer.close()
        return found

    def close(self):
        self._writer.close()

    def reset(self):
        """Drops the connection with a TCP reset."""
        sever(self._writer, "rst")


class Sent:
    """A request that was sent: its response, or a reset before one."""

    def __init__(self, reader, writer):
        self._reader, self._writer = reader, writer

    async def response(self):
        head = await self._reader.readuntil(b"\r\n\r\n")
        first, headers = parse_head(head)
        return Response(int(first.split(" ")[1]), headers, self._reader, self._writer)

    def reset(self):
        sever(self._writer, "rst")


async def send(port, method="POST", body=None, path="/mcp", **headers):
    """Sends one request on a connection of its own; a header's name is written with `_` for `-`."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
    payload = b"" if body is None else json.dumps(body).encode()
    head = {"host": f"127.0.0.1:{port}", "accept": ACCEPT, "content-type": "application/json"}
    head |= {name.replace("_", "-"): value for name, value in headers.items()}
    head["content-length"] = str(len(payload))
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in head.items())]
    writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + payload)
    await writer.drain()
    return Sent(reader, writer)


async def ask(port, **request):
    return await (await send(port, **request)).response()


def call(request_id, tool, **arguments):
    """A `tools/call` that asks for progress."""
    params = {"name": tool, "arguments": arguments, "_meta": {"progressToken": request_id}}
    return {"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": params}


async def until_progress(answer, n):
    """Reads the events of a response until progress `n`."""
    while event := await answer.event():
        # A number of Python's or rmcp's has a fraction.
        if re.search(rf'"progress":{n}(\.0)?[,}}]', event.data):
            return
    raise AssertionError(f"the stream ended before progress {n}")


async def open_session(port, revision="2025-11-25", capabilities=None, **headers):
    """Initialises a session; returns the headers for its further requests."""
    client = {"name": "raw", "version": "1"}
    params = {"protocolVersion": revision, "capabilities": capabilities or {}, "clientInfo": client}
    body = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
    answer = await ask(port, body=body, **headers)
    assert answer.status == 200
    session = {"mcp_protocol_version": revision, **headers}
    # A server without sessions names none.
    if session_id := answer.headers.get("mcp-session-id"):
        session["mcp_session_id"] = session_id
    await answer.messages()
    done = await ask(port, body={"jsonrpc": "2.0", "method": "notifications/initialized"}, **session)
    assert done.status == 202
    await done.body()
    return session
