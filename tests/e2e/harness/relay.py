"""A small HTTP/1.1 relay that observes every exchange and cuts those that a test selects.

It stands in for the network: client -> relay -> proxy (or, for the contrast, the server itself). Event streams are passed on
one event at a time, so that a cut falls exactly at its place; all other bytes pass as they come. One exchange at a time
runs on a connection, as HTTP/1.1 clients do it.
"""

import asyncio
import json
import re
import socket
import struct
from dataclasses import dataclass, field

from harness.stack import free_port

BLOCK_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")

# Bytes written right before a reset may be lost with it: the pause lets the client read them first.
SETTLE = 0.05


@dataclass(frozen=True)
class Cut:
    """The place of a cut, its kind, and its repetitions.

    `at`: "request": once the request was passed on, before any response; "silence": `n` milliseconds after that, if no event
    came; "head": after the response's head alone; "event": after `n` events with data (0: before the first); "final": in the
    middle of the event that carries the response; "byte": behind `n` bytes of the response. `how`: "rst" or "fin". `on`: the
    exchange to cut, a tool call ("call"), a poll of a task ("poll"), a client response ("answer"), the session's standalone stream
    ("standalone"), or a method. `resumes`: cut resumed requests as well. `away`: seconds without new connections after a cut.
    `primed`: a silence counts from the first id without data, not from the request.
    """

    at: str
    n: int = 0
    how: str = "rst"
    times: int = 1
    on: str = "call"
    resumes: bool = False
    away: float = 0.0
    hold: bool = False
    primed: bool = False


@dataclass
class Event:
    id: str | None
    data: str
    retry: int | None = None


@dataclass
class Exchange:
    """One request and the client's response to it."""

    method: str
    path: str
    headers: dict
    body: bytes
    began: float
    target: int = 0
    status: int | None = None
    response_headers: dict = field(default_factory=dict)
    events: list = field(default_factory=list)
    primes: list = field(default_factory=list)
    # The last event block that was written, comments included.
    retry: int | None = None
    cut: bool = False
    ended: float | None = None

    @property
    def messages(self):
        """The JSON-RPC messages of the request."""
        try:
            parsed = json.loads(self.body)
        except ValueError:
            return []
        return [message for message in (parsed if isinstance(parsed, list) else [parsed]) if isinstance(message, dict)]

    @property
    def methods(self):
        return [message["method"] for message in self.messages if "method" in message]

    @property
    def is_call(self):
        return "tools/call" in self.methods

    @property
    def is_poll(self):
        return "tasks/get" in self.methods

    @property
    def kind(self):
        if self.method == "GET" and not self.is_resume:
            return "standalone"
        if self.is_call:
            return "call"
        if self.is_answer:
            return "answer"
        return "poll" if self.is_poll else "other"

    @property
    def is_resume(self):
        """True if the request resumes a stream, in any dialect that marks this by more than a tool call."""
        if "mcp-stream=" in self.path:
            return True
        if self.method == "GET":
            return "last-event-id" in self.headers
        return any(message.get("method") in ("requests/resume", "stream/resume") for message in self.messages)

    @property
    def is_answer(self):
        return self.method == "POST" and any(
            "method" not in message and ("result" in message or "error" in message) for message in self.messages
        )


class Spent(Exception):
    """The bytes before the place of a cut are written."""


class Limited:
    """Writes `left` bytes, and raises `Spent` then."""

    def __init__(self, writer, left):
        self._writer, self._left = writer, left

    def write(self, piece):
        self._writer.write(piece[: self._left])
        self._left -= len(piece)
        if self._left <= 0:
            raise Spent

    async def drain(self):
        await self._writer.drain()


class Severed(Exception):
    """The relay cut this connection on purpose."""


class Connection:
    """The relay's own connection to its target."""

    def __init__(self):
        self.target, self.reader, self.writer = 0, None, None

    async def open(self, target):
        self.close()
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", target, limit=1 << 24)
        self.target = target

    def close(self):
        if self.writer is not None:
            self.writer.close()


class Relay:
    """`async with Relay(port, cut) as relay`: relays 127.0.0.1:`relay.port` to `port`.

    `slow_answers`: delay in seconds of a client response to a request of the server, as if a user had to think about it.
    """

    # True if the client's connection ends with that to the target, as if there were no relay.
    closes_with_target = True

    def __init__(self, target, cut=None, slow_answers=0.0):
        self.target = target
        self.cut = cut
        self.slow_answers = slow_answers
        self.exchanges = []
        self.cuts = 0
        # Connections that the target refused.
        self.refused = 0
        self._away_until = 0.0
        self._open_to_all = asyncio.Event()
        self._open_to_all.set()
        self._tasks = set()
        self._idle = set()
        # Outgoing connections are never given this port while the relay refuses its own.
        self.port = free_port()

    async def __aenter__(self):
        self._began = asyncio.get_running_loop().time()
        await self.listen()
        return self

    async def listen(self):
        """Listens; after `refuse` at the same address again."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port, limit=1 << 24)

    def refuse(self):
        """Refuses new connections and drops the idle ones; exchanges in flight go on."""
        self._server.close()
        self._drop_idle()

    def redirect(self, target):
        """Relays new exchanges to `target`; those in flight stay with theirs."""
        self.target = target
        self._drop_idle()

    def release(self):
        """Releases the clients that a cut with `hold` keeps waiting."""
        self._open_to_all.set()

    def _drop_idle(self):
        for writer in self._idle:
            sever(writer, "fin")

    async def __aexit__(self, *_):
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def calls(self):
        return [exchange for exchange in self.exchanges if exchange.is_call]

    @property
    def polls(self):
        return [exchange for exchange in self.exchanges if exchange.is_poll]

    @property
    def answers(self):
        return [exchange for exchange in self.exchanges if exchange.is_answer]

    @property
    def resumes(self):
        return [exchange for exchange in self.exchanges if exchange.is_resume]

    def report(self):
        """The exchanges as text, for the report of a failed test."""
        lines = [f"{self.cuts} cuts"]
        for exchange in self.exchanges:
            what = ", ".join(str(message.get("method", "answer")) for message in exchange.messages)
            if cursor := exchange.headers.get("last-event-id"):
                what += f" after {cursor}"
            ids = [str(id) for id in (*exchange.primes, *(event.id for event in exchange.events))]
            ids = ids if len(ids) < 5 else [*ids[:2], f"… {len(ids) - 4} …", *ids[-2:]]
            ended = "open" if exchange.ended is None else f"{exchange.ended - self._began:.2f} s"
            lines.append(
                f"{exchange.began - self._began:.2f} s .. {ended}: {exchange.method} {what} "
                f"-> {exchange.target} {exchange.status} {ids}"
                + (" cut" if exchange.cut else "")
            )
        return "\n".join(lines)

    def url(self, path="/mcp"):
        return f"http://127.0.0.1:{self.port}{path}"

    async def _accept(self, reader, writer):
        task = asyncio.current_task()
        self._tasks.add(task)
        try:
            if asyncio.get_running_loop().time() < self._away_until:
                sever(writer, "rst")
                return
            await self._open_to_all.wait()
            await self._connection(reader, writer)
        except asyncio.CancelledError:
            # Only the end of the test cancels; asyncio's streams would log it as a failure.
            sever(writer, "rst")
        finally:
            self._tasks.discard(task)

    async def _connection(self, reader, writer):
        connection, head = Connection(), b""
        try:
            await self._open(connection)
        except OSError:
            self.refused += 1
            sever(writer, "rst")
            return
        try:
            while True:
                self._idle.add(writer)
                raw, exchange = await self._request(head, reader, writer, connection)
                await self._send(exchange, raw, connection)
                response = asyncio.create_task(self._response(exchange, raw, connection, writer))
                head = await until_done_or_gone(response, reader)
                exchange.ended = asyncio.get_running_loop().time()
                if response.result() == "close":
                    break
        except Severed as severed:
            sever(writer, severed.args[0])
            sever(connection.writer, "rst")
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            self._idle.discard(writer)
            writer.close()
            connection.close()

    async def _request(self, head, reader, writer, connection):
        """The next request unchanged, and its description."""
        head += await head_unless_gone(reader, connection.reader if self.closes_with_target else None)
        self._idle.discard(writer)
        first, headers = parse_head(head)
        method, path, _ = first.split(" ", 2)
        body = b"".join([piece async for piece in read_body(headers, reader, request=True)])
        exchange = Exchange(method, path, headers, body, asyncio.get_running_loop().time())
        self.exchanges.append(exchange)
        if exchange.is_answer and self.slow_answers:
            await asyncio.sleep(self.slow_answers)
        return head + framed(headers, body), exchange

    async def _open(self, connection):
        """Connects to the target for a client that has connected."""
        await connection.open(self.target)

    async def _send(self, exchange, raw, connection):
        exchange.target = connection.target
        connection.writer.write(raw)
        await connection.writer.drain()

    def _due(self, exchange, at, n=None):
        cut = self.cut
        return (
            cut is not None
            and cut.at == at
            and (n is None or cut.n == n)
            and self.cuts < cut.times
            and (exchange.kind == cut.on or cut.on in exchange.methods or (cut.resumes and exchange.is_resume))
        )

    async def _sever(self, exchange):
        await asyncio.sleep(SETTLE)
        self.cuts += 1
        exchange.cut = True
        if self.cut.hold:
            self._open_to_all.clear()
        self._away_until = asyncio.get_running_loop().time() + self.cut.away
        raise Severed(self.cut.how)

    async def _response(self, exchange, raw, connection, writer):
        if self._due(exchange, "request"):
            await self._sever(exchange)
        patience = self.cut.n / 1000 if self._due(exchange, "silence") and not self.cut.primed else None
        if self._due(exchange, "byte"):
            writer = Limited(writer, self.cut.n)
        try:
            async with asyncio.timeout(patience) as silence:
                return await self._answer(exchange, raw, connection, writer, silence)
        except (TimeoutError, Spent):
            await self._sever(exchange)

    async def _head(self, exchange, raw, connection):
        """The head of the response; `raw` is the request."""
        head = await connection.reader.readuntil(b"\r\n\r\n")
        first, exchange.response_headers = parse_head(head)
        exchange.status = int(first.split(" ")[1])
        return head

    async def _answer(self, exchange, raw, connection, writer, silence):
        writer.write(await self._head(exchange, raw, connection))
        headers = exchange.response_headers
        if self._due(exchange, "head"):
            await self._sever(exchange)
        no_body = exchange.method == "HEAD" or exchange.status in (204, 304)
        if not no_body:
            if headers.get("content-type", "").startswith("text/event-stream"):
                await self._events(exchange, headers, connection.reader, writer, silence)
            else:
                async for piece in read_body(headers, connection.reader):
                    writer.write(chunked(headers, piece))
            writer.write(chunked(headers, b""))
        await writer.drain()
        keep = no_body or "content-length" in headers or "transfer-encoding" in headers
        return "keep" if keep and headers.get("connection", "").lower() != "close" else "close"

    async def _events(self, exchange, headers, up_reader, writer, silence):
        pending = b""
        async for piece in read_body(headers, up_reader):
            pending += piece
            while end := BLOCK_END.search(pending):
                block, pending = pending[: end.end()], pending[end.end() :]
                event = parse_event(block)
                if event is not None and event.retry is not None:
                    exchange.retry = event.retry
                if event is not None and event.data:
                    silence.reschedule(None)
                    await self._event(exchange, headers, event, block, writer)
                    continue
                writer.write(chunked(headers, block))
                await writer.drain()
                if event is not None:
                    exchange.primes.append(event.id)
                    if self.cut and self.cut.primed and len(exchange.primes) == 1 and self._due(exchange, "silence"):
                        silence.reschedule(asyncio.get_running_loop().time() + self.cut.n / 1000)
        if pending:
            writer.write(chunked(headers, pending))

    async def _event(self, exchange, headers, event, block, writer):
        if not exchange.events and self._due(exchange, "event", 0):
            await self._sever(exchange)
        if is_response(event.data) and self._due(exchange, "final"):
            whole = chunked(headers, block)
            writer.write(whole[: len(whole) // 2])
            await self._sever(exchange)
        writer.write(chunked(headers, block))
        await writer.drain()
        exchange.events.append(event)
        if self._due(exchange, "event", len(exchange.events)):
            await self._sever(exchange)


async def head_unless_gone(reader, up_reader):
    """Reads the head of a request. A server that closes an idle connection closes it for the client as well, which could use it else."""
    head = asyncio.create_task(reader.readuntil(b"\r\n\r\n"))
    gone = asyncio.create_task(up_reader.read(1) if up_reader else asyncio.Event().wait())
    try:
        await asyncio.wait({head, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not head.done():
            raise asyncio.IncompleteReadError(b"", None)
        return head.result()
    finally:
        for task in (head, gone):
            task.cancel()
        await asyncio.gather(head, gone, return_exceptions=True)


async def until_done_or_gone(response, reader):
    """Waits for the response; a client that closes meanwhile ends it. Returns what the client sent early."""
    gone = asyncio.create_task(reader.read(1))
    try:
        await asyncio.wait({response, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not response.done():
            early = gone.result()
            if not early:
                raise asyncio.IncompleteReadError(b"", None)
            await response
            return early
        response.result()
        if gone.done():
            return gone.result()
        return b""
    finally:
        for task in (response, gone):
            task.cancel()
        await asyncio.gather(response, gone, return_exceptions=True)


def sever(writer, how):
    """Ends the connection: "rst" resets it, "fin" closes it."""
    if how == "rst":
        sock = writer.get_extra_info("socket")
        if sock is not None and sock.fileno() >= 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
    else:
        writer.close()


def parse_head(head):
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {}
    for line in filter(None, lines):
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    return first, headers


async def read_body(headers, reader, request=False):
    """Yields the body's bytes without their framing."""
    if "chunked" in headers.get("transfer-encoding", "").lower():
        while size := await chunk_size(reader):
            yield (await reader.readexactly(size + 2))[:-2]
        while (await reader.readline()).strip():
            pass
    elif "content-length" in headers:
        if length := int(headers["content-length"]):
            yield await reader.readexactly(length)
    elif not request:
        while piece := await reader.read(1 << 16):
            yield piece


async def chunk_size(reader):
    line = await reader.readline()
    if not line.endswith(b"\n"):
        raise asyncio.IncompleteReadError(line, None)
    return int(line.split(b";")[0], 16)


def chunked(headers, piece):
    """`piece` in the framing that the head announced; an empty piece ends the body."""
    if "chunked" not in headers.get("transfer-encoding", "").lower():
        return piece
    return b"%x\r\n%b\r\n" % (len(piece), piece)


def framed(headers, body):
    if "chunked" not in headers.get("transfer-encoding", "").lower():
        return body
    return (chunked(headers, body) if body else b"") + chunked(headers, b"")


def parse_event(block):
    """The event of one block of lines; None for a comment alone."""
    fields = {}
    for line in block.decode("utf-8", "replace").splitlines():
        name, _, value = line.partition(":")
        if name:
            fields.setdefault(name, []).append(value.removeprefix(" "))
    if not fields:
        return None
    retry = fields.get("retry", [""])[-1]
    return Event(fields.get("id", [None])[-1], "\n".join(fields.get("data", [])), int(retry) if retry else None)


def is_response(data):
    try:
        message = json.loads(data)
    except ValueError:
        return False
    return isinstance(message, dict) and "method" not in message and ("result" in message or "error" in message)
