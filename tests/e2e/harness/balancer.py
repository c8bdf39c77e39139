"""Sidecars, each in front of its own server, behind balancers; a front for these; and a network that loses packets."""

import asyncio
import collections
import contextlib
import json
import subprocess
import urllib.request
from dataclasses import dataclass

from harness import stack
from harness.relay import Relay
from harness.replicas import Replica
from harness.stack import START_LIMIT, counters, eventually

# A balancer that does not answer a probe by then gets no requests.
PROBE_LIMIT = 5.0


class BalancerProcess(Replica):
    """A balancer in front of the sidecars at these URLs, with the same addresses and settings after each start."""

    program = staticmethod(stack.start_balancer)

    def known(self):
        """The condition of each sidecar as the balancer reports it, by port."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.admin}/replicas", timeout=START_LIMIT) as page:
            return {int(known["address"].rsplit(":", 1)[1]): known["condition"] for known in json.load(page)}

    async def knows(self, port, condition):
        """Waits until the balancer reports this condition of the sidecar at `port`."""
        await eventually(lambda: self.known().get(port) == condition, START_LIMIT)


class Redis:
    """A Redis without persistence, at the same address after each start; `start` is the fixture."""

    def __init__(self, start, folder):
        self._start, self._folder, self.port = start, folder, 0
        self.begin()

    def begin(self):
        self.process = self._start(stack.start_redis, self._folder, self.port)
        self.port, self.url = self.process.found["port"], self.process.found["url"]


@dataclass
class Fleet:
    """Sidecars, servers and balancers together: sidecar n is in front of the server at `ports[n]`."""

    ports: list
    sidecars: list
    balancers: list

    def ran_at(self, key):
        """The sidecar whose server ran the call."""
        [at] = [
            sidecar
            for sidecar, port in zip(self.sidecars, self.ports, strict=True)
            if counters(port, key)["started"]
        ]
        return at

    def calls_at(self, sidecar, names):
        return {name for name in names if self.ran_at(name) is sidecar}

    def is_busy(self, sidecar, names):
        """True if one of the calls is in flight at the sidecar."""
        port = self.ports[self.sidecars.index(sidecar)]
        runs = (counters(port, name) for name in list(names))
        return any(count["started"] > count["finished"] for count in runs)

    def others(self, sidecar):
        return [other for other in self.sidecars if other is not sidecar]


class Front(Relay):
    """`async with Front(balancers) as front`: the address of several balancers, as a name or a load balancer gives it.

    Each request goes to the next ready balancer, on a connection of its own, and none is sent twice.
    """

    closes_with_target = False

    def __init__(self, balancers, cut=None):
        super().__init__(None, cut)
        self.balancers = list(balancers)
        self._turns = collections.Counter()
        self._connections = {}

    def calls_at(self, balancer):
        return [exchange for exchange in self.calls if exchange.target == balancer.port]

    def resumes_at(self, balancer):
        return [exchange for exchange in self.resumes if exchange.target == balancer.port]

    def abandon(self, balancer):
        """Sends nothing more to the balancer and drops its connections, as a load balancer does that has noticed the hang."""
        self.balancers.remove(balancer)
        for task, connection in self._connections.items():
            if connection.target == balancer.port:
                task.cancel()

    async def _connection(self, reader, writer):
        try:
            await super()._connection(reader, writer)
        finally:
            self._connections.pop(asyncio.current_task(), None)

    async def _open(self, connection):
        self._connections[asyncio.current_task()] = connection

    async def _send(self, exchange, raw, connection):
        await self._open_ready(exchange.kind, connection)
        await super()._send(exchange, raw, connection)

    async def _open_ready(self, kind, connection):
        turn = self._turns[kind] % len(self.balancers)
        self._turns[kind] += 1
        for balancer in self.balancers[turn:] + self.balancers[:turn]:
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(PROBE_LIMIT):
                    if await balancer.is_ready():
                        return await connection.open(balancer.port)
        raise ConnectionRefusedError("no balancer is ready")


class Island:
    """A network namespace whose links to this machine can be cut silently: packets on a cut link are lost without an error.

    Each link is a /30 network of its own, with one address here and one there. All names and addresses have a number that no other
    island on this machine has. Needs root.
    """

    def __init__(self, links):
        self._links = list(links)

    def __enter__(self):
        self._number = new_namespace()
        self.name = f"e2e-{self._number}"
        try:
            self._make_links()
        except subprocess.CalledProcessError:
            self.__exit__()
            raise
        return self

    def _make_links(self):
        self._ip_there("link", "set", "lo", "up")
        for link in self._links:
            here, there = self._devices(link)
            ip("link", "add", here, "type", "veth", "peer", "name", there, "netns", self.name)
            ip("address", "add", f"{self.here(link)}/30", "dev", here)
            ip("link", "set", here, "up")
            self._ip_there("address", "add", f"{self.there(link)}/30", "dev", there)
            self._ip_there("link", "set", there, "up")

    def __exit__(self, *_):
        for link in self._links:
            with contextlib.suppress(subprocess.CalledProcessError):
                ip("link", "delete", self._devices(link)[0])
        with contextlib.suppress(subprocess.CalledProcessError):
            ip("netns", "delete", self.name)

    @property
    def within(self):
        """The command that runs another one in the namespace."""
        return "ip", "netns", "exec", self.name

    def here(self, link):
        return f"10.213.{self._number}.{4 * self._links.index(link) + 1}"

    def there(self, link):
        return f"10.213.{self._number}.{4 * self._links.index(link) + 2}"

    def darken(self, *links):
        """Redirects both sides of the links to a machine that does not exist."""
        for link in links:
            here, there = self._devices(link)
            absent = ("lladdr", "02:00:00:00:00:99", "nud", "permanent")
            ip("neighbour", "replace", self.there(link), "dev", here, *absent)
            self._ip_there("neighbour", "replace", self.here(link), "dev", there, *absent)

    def lighten(self, *links):
        for link in links:
            here, there = self._devices(link)
            ip("neighbour", "delete", self.there(link), "dev", here)
            self._ip_there("neighbour", "delete", self.here(link), "dev", there)

    def _devices(self, link):
        at = self._links.index(link)
        return f"{self.name}h{at}", f"{self.name}t{at}"

    def _ip_there(self, *words):
        ip("-n", self.name, *words)


def new_namespace():
    """Makes the namespace `e2e-N` for the first free number N, which it returns."""
    for number in range(256):
        try:
            ip("netns", "add", f"e2e-{number}")
            return number
        except subprocess.CalledProcessError as error:
            if "File exists" not in error.stderr:
                raise
    raise RuntimeError("no number is free: see `ip netns`")


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


class Pipe:
    """`async with Pipe(host, port) as pipe`: forwards `host`:`pipe.port` to 127.0.0.1:`port`."""

    def __init__(self, host, port):
        self._host, self._target = host, port
        self._tasks = set()

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._accept, self._host, 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, *client):
        task = asyncio.current_task()
        self._tasks.add(task)
        ends = [client[1]]
        with contextlib.suppress(OSError, asyncio.CancelledError):
            server = await asyncio.open_connection("127.0.0.1", self._target)
            ends.append(server[1])
            await asyncio.gather(pour(client[0], server[1]), pour(server[0], client[1]))
        for writer in ends:
            writer.close()
        self._tasks.discard(task)


async def pour(reader, writer):
    try:
        while piece := await reader.read(1 << 16):
            writer.write(piece)
            await writer.drain()
    finally:
        writer.close()
