"""Proxies that are ended and started again, and a load balancer before several of them."""

import asyncio
import collections
import contextlib
import time

from harness.raw import ask
from harness.relay import Relay
from harness.stack import START_LIMIT, proxy_binary, start_proxy


class Replica:
    """A proxy with the same places and settings after each start; `start` is the fixture."""

    program = staticmethod(start_proxy)

    def __init__(self, start, upstream, **settings):
        self._start, self._upstream, self._settings = start, upstream, settings
        self.port = self.admin = 0
        self.begin()

    def begin(self):
        """Starts it, again where it was; returns the seconds that took."""
        began = time.monotonic()
        places = {"listen": self.port, "admin": self.admin}
        self.process = self._start(self.program, self._upstream, **places, **self._settings)
        self.port, self.admin = self.process.found["port"], self.process.found["admin"]
        return time.monotonic() - began

    def kill(self):
        """Ends it at once, and nothing it could still do is done."""
        self.process.kill()

    async def readiness(self):
        """What it answers to a load balancer; None if nobody answers."""
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            answer = await ask(self.admin, method="GET", path="/readyz")
            return answer.status, (await answer.body()).decode()
        return None

    async def is_ready(self):
        readiness = await self.readiness()
        return readiness is not None and readiness[0] == 200

    async def until(self, ready):
        """Waits until calls would be sent there, or no longer."""
        async with asyncio.timeout(START_LIMIT):
            while await self.is_ready() != ready:
                await asyncio.sleep(0.02)


async def by_signal(replica):
    """Drains by SIGTERM; it is over when the process is."""
    replica.process.terminate()
    assert await asyncio.to_thread(replica.process.ended) == 0


async def by_command(replica):
    """Drains by `mcp-resume drain`."""
    command = [proxy_binary(), "drain", "--admin", f"127.0.0.1:{replica.admin}"]
    draining = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.DEVNULL)
    assert await draining.wait() == 0


async def by_request(replica):
    """Drains by the admin listener."""
    answer = await ask(replica.admin, method="GET", path="/drain", x_drain="1")
    assert (answer.status, await answer.body()) == (200, b"drained\n")


DRAINS = {"signal": by_signal, "command": by_command, "request": by_request}


class Balancer(Relay):
    """`async with Balancer(replicas) as balancer`: sends every request to a replica that says it is ready.

    Requests of one kind go to each in turn, and what is answered 503 goes to the next, as some load balancers do it.
    `whole_connections`: a connection is sent to a replica once, with all its requests, and nothing is sent twice.
    """

    def __init__(self, replicas, whole_connections=False):
        super().__init__(None)
        self.replicas = list(replicas)
        self._whole_connections = whole_connections
        self._turns = collections.Counter()

    def calls_at(self, replica):
        return [exchange for exchange in self.calls if exchange.target == replica.port]

    def went_on_at(self, replica, call):
        """The requests that went on with a call there."""
        at = [resume for resume in self.resumes if resume.target == replica.port]
        return [resume for resume in at if stream_of(resume.headers["last-event-id"]) == stream_of(call.primes[0])]

    async def _open(self, way):
        if self._whole_connections:
            await self._open_ready("connection", way)

    async def _request(self, head, reader, writer, way):
        """The next request, unless the replica ends the whole connection before one."""
        request = asyncio.create_task(super()._request(head, reader, writer, way))
        try:
            while not request.done():
                if self._whole_connections and way.reader.at_eof():
                    raise ConnectionResetError("the replica closed it")
                await asyncio.wait({request}, timeout=0.01)
            return request.result()
        finally:
            request.cancel()

    async def _send(self, exchange, raw, way):
        if not self._whole_connections:
            await self._open_ready(exchange.kind, way)
        await super()._send(exchange, raw, way)

    async def _head(self, exchange, raw, way):
        head = await super()._head(exchange, raw, way)
        if exchange.status == 503 and not self._whole_connections:
            await self._send(exchange, raw, way)
            head = await super()._head(exchange, raw, way)
        return head

    async def _open_ready(self, kind, way):
        turn = self._turns[kind] % len(self.replicas)
        self._turns[kind] += 1
        for replica in self.replicas[turn:] + self.replicas[:turn]:
            if await replica.is_ready():
                with contextlib.suppress(OSError):
                    return await way.open(replica.port)
        raise ConnectionRefusedError("no replica is ready")


def stream_of(event_id):
    return event_id.split(".")[0]
