"""Records the bytes on the wire, and renders them without the differences between two runs: ids, secrets, ports and dates."""

import asyncio
import re

from harness.relay import parse_head, read_body

EVENT_ID = re.compile(r"^(?:id|last-event-id): ([\w-]{16,})\.(\d+|end)(?:\.([\w-]+))?\r?$", re.M | re.I)
NAMED = (
    ("session", re.compile(r"^mcp-session-id: ([^\r\n]+)", re.M | re.I)),
    ("token", re.compile(r'"(?:nextR|r)esumeToken":\s*"([^"]+)"')),
    ("stream", re.compile(r'"streamId":\s*"([^"]+)"')),
    ("handle", re.compile(r"mcp-stream=([\w-]+)")),
)


class Recorder:
    """`async with Recorder(port) as recorder`: a relay at `recorder.port` that keeps the bytes of each exchange.

    Each connection has one exchange, as the clients of bare requests use it.
    """

    def __init__(self, target):
        self.target = target
        self.kept = []
        self._tasks = set()

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader, writer):
        task = asyncio.current_task()
        self._tasks.add(task)
        sent, got = bytearray(), bytearray()
        self.kept.append((sent, got))
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self.target)
        there = asyncio.create_task(self._pass(reader, up_writer, sent))
        back = asyncio.create_task(self._pass(up_reader, writer, got))
        try:
            # The first end ends both directions: a client that leaves in the middle, or the response.
            await asyncio.wait({there, back}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            # Only the end of the recording cancels; asyncio's streams would log it as a failure.
            pass
        finally:
            there.cancel()
            back.cancel()
            writer.close()
            up_writer.close()
            self._tasks.discard(task)

    async def _pass(self, reader, writer, kept):
        try:
            while piece := await reader.read(1 << 16):
                kept += piece
                writer.write(piece)
                await writer.drain()
        except OSError:
            pass


async def render(kept, titles):
    """The exchanges as one text, each under its title."""
    if len(kept) != len(titles):
        raise ValueError(f"{len(kept)} exchanges, but {len(titles)} titles")
    told = []
    for (sent, got), title in zip(kept, titles, strict=True):
        told.append(f"### {title}\n\n{await _message(bytes(sent), True)}\n\n{await _message(bytes(got), False)}")
    return _shortened("\n\n\n".join(told)) + "\n"


async def _message(raw, request):
    """One request or response: its head, and its body without the framing. A body that was cut ends at the cut."""
    reader = asyncio.StreamReader()
    reader.feed_data(raw)
    reader.feed_eof()
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    _, headers = parse_head(head.encode("latin-1"))
    body, cut = b"", b""
    try:
        async for piece in read_body(headers, reader, request):
            body += piece
    except asyncio.IncompleteReadError:
        cut = b"\n\n(the connection is cut here)"
    return "\n".join([head.replace("\r\n", "\n").rstrip(), "", (body.rstrip() + cut).decode()]).rstrip()


def _shortened(text):
    """Replaces every secret and id by a short name, numbered in order of appearance."""
    handles = _in_order(match[1] for match in EVENT_ID.finditer(text))
    attaches = _in_order(match[3] for match in EVENT_ID.finditer(text) if match[3])
    names = {name: _in_order(match[1] for match in found.finditer(text)) for name, found in NAMED}
    names["handle"] = _in_order([*handles, *names["handle"]])
    # A token can contain a handle, so longer ones are replaced first.
    short = {secret: f"{name}-{n}" for name, found in names.items() for n, secret in enumerate(found, 1)}
    for n, attach in enumerate(attaches, 1):
        text = re.sub(rf"(?<=\.){re.escape(attach)}\b", f"attach-{n}", text)
    for secret in sorted(short, key=len, reverse=True):
        text = text.replace(secret, short[secret])
    text = re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:8080", text)
    text = re.sub(r"^(date: ).*$", r"\1Thu, 01 Jan 2026 00:00:00 GMT", text, flags=re.M | re.I)
    # The length is that of the original body, not of its rendering. No dialect has the promise, whose epoch differs.
    return re.sub(r"^(?:content-length|mcp-resume): .*\n", "", text, flags=re.M | re.I)


def _in_order(found):
    return list(dict.fromkeys(found))
