"""A server in front of another one that refuses `initialize` as a server of 2026-07-28 alone does: for SDKs that cannot be told to."""

import asyncio
import contextlib
import json

REFUSED = {"code": -32022, "message": "Unsupported protocol version", "data": {"supported": ["2026-07-28"]}}


class ModernOnly:
    """`async with ModernOnly(port) as server`: `server.port` is its own port. One exchange runs on a connection."""

    def __init__(self, target):
        self._target = target
        self._exchanges = set()

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        self._server.close()
        for exchange in self._exchanges:
            exchange.cancel()
        await asyncio.gather(*self._exchanges, return_exceptions=True)

    async def _serve(self, reader, writer):
        task = asyncio.current_task()
        self._exchanges.add(task)
        try:
            await self._exchange(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._exchanges.discard(task)
            writer.close()

    async def _exchange(self, reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        lines = [line for line in head.split(b"\r\n")[1:] if line]
        length = next((int(line[15:]) for line in lines if line.lower().startswith(b"content-length:")), 0)
        body = await reader.readexactly(length)
        if body and (message := json.loads(body)).get("method") == "initialize":
            refusal = json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": REFUSED}).encode()
            start = "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n"
            writer.write(f"{start}content-length: {len(refusal)}\r\n\r\n".encode() + refusal)
            await writer.drain()
            return
        target, forward = await asyncio.open_connection("127.0.0.1", self._target)
        kept = [line for line in lines if not line.lower().startswith(b"connection:")]
        forward.write(b"\r\n".join([head.split(b"\r\n")[0], *kept, b"connection: close", b"", body]))
        both = {asyncio.create_task(pass_on(target, writer)), asyncio.create_task(until_end(reader))}
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for side in both:
                side.cancel()
            forward.close()


async def pass_on(reader, writer):
    """Passes a response on, whose head closes the connection. Either side may reset it."""
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()


async def until_end(reader):
    """Waits until the client has left."""
    with contextlib.suppress(OSError):
        await reader.read()
