"""Proxies that are stopped and restarted, and a load balancer in front of several of them."""

import asyncio
import collections
import contextlib
import time

from harness.raw import ask
from harness.relay import Relay
from harness.stack import START_LIMIT, free_port, proxy_binary, start_proxy


class Replica:
    """A proxy with the same addresses and settings after each start; `start` is the fixture."""

    program = staticmethod(start_proxy)

    def __init__(self, start, upstream, **settings):
        self._start, self._upstream, self._settings = start, upstream, settings
        self.port, self.admin = free_port(), free_port()
        self.begin()

    def begin(self):
        """Starts the proxy, again at its address; returns the seconds that this took."""
        began = time.monotonic()
        places = {"listen": self.port, "admin": self.admin}
        self.process = self._start(self.program, self._upstream, **places, **self._settings)
        return time.monotonic() - began

    def kill(self):
        """Kills the proxy, without any shutdown."""
        self.process.kill()

    async def readiness(self):
        """The response to a load balancer's probe, or None if there is none."""
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            answer = await ask(self.admin, method="GET", path="/readyz")
            return answer.status, (await answer.body()).decode()
        return None

    async def is_ready(self):
        readiness = await self.readiness()
        return readiness is not None and readiness[0] == 200

    async def until(self, ready):
        """Waits until a load balancer would send calls there, or would stop."""
        async with asyncio.timeout(START_LIMIT):
            while await self.is_ready() != ready:
                await asyncio.sleep(0.02)


async def by_signal(replica):
    """Drains by SIGTERM; the end of the process is the end of the drain."""
    replica.process.terminate()
    assert await asyncio.to_thread(replica.process.ended) == 0


async def by_command(replica):
    """Drains by `mcp-resume drain`."""
    command = [proxy_binary(), "drain", "--admin", f"127.0.0.1:{replica.admin}"]
    draining = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.DEVNULL)
    assert await draining.wait() == 0


async def by_request(replica):
    """Drains through the admin listener."""
    answer = await ask(replica.admin, method="GET", path="/drain", x_drain="1")
    assert (answer.status, await answer.body()) == (200, b"drained\n")


DRAINS = {"signal": by_signal, "command": by_command, "request": by_request}


class Balancer(Relay):
    """`async with Balancer(replicas) as balancer`: sends each request to a replica that reports itself ready.

    Requests of one kind go to the replicas in turn, and a request answered 503 goes to the next one, as some load balancers do
    it. `whole_connections`: a connection stays with one replica for all its requests, and nothing is sent twice.
    """

    closes_with_target = False

    def __init__(self, replicas, whole_connections=False):
        super().__init__(None)
        self.replicas = list(replicas)
        self._whole_connections = whole_connections
        self._turns = collections.Counter()

    def calls_at(self, replica):
        return [exchange for exchange in self.calls if exchange.target == replica.port]

    def resumed_at(self, replica, call):
        """The requests that resumed a call at this replica."""
        at = [resume for resume in self.resumes if resume.target == replica.port]
        return [resume for resume in at if stream_of(resume.headers["last-event-id"]) == stream_of(call.primes[0])]

    async def _open(self, connection):
        if self._whole_connections:
            await self._open_ready("connection", connection)

    async def _request(self, head, reader, writer, connection):
        """The next request, or the end of the connection if the replica ends it first."""
        request = asyncio.create_task(super()._request(head, reader, writer, connection))
        try:
            while not request.done():
                if self._whole_connections and connection.reader.at_eof():
                    raise ConnectionResetError("the replica closed it")
                await asyncio.wait({request}, timeout=0.01)
            return request.result()
        finally:
            request.cancel()

    async def _send(self, exchange, raw, connection):
        if not self._whole_connections:
            await self._open_ready(exchange.kind, connection)
        await super()._send(exchange, raw, connection)

    async def _head(self, exchange, raw, connection):
        head = await super()._head(exchange, raw, connection)
        if exchange.status == 503 and not self._whole_connections:
            await self._send(exchange, raw, connection)
            head = await super()._head(exchange, raw, connection)
        return head

    async def _open_ready(self, kind, connection):
        turn = self._turns[kind] % len(self.replicas)
        self._turns[kind] += 1
        for replica in self.replicas[turn:] + self.replicas[:turn]:
            if await replica.is_ready():
                with contextlib.suppress(OSError):
                    return await connection.open(replica.port)
        raise ConnectionRefusedError("no replica is ready")


def stream_of(event_id):
    return event_id.split(".")[0]
