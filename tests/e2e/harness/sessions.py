"""Sessions of stock clients, which a test keeps open while servers and proxies are restarted."""

from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass

from harness import stack
from harness.relay import Relay
from harness.stack import CLIENTS, LEGACY, Client, eventually, server_kind, together

# Time of a server to ask for roots once the client listens.
ROOTS_LIMIT = 10


@dataclass
class Session:
    """One client, the relay in front of it, and the server's program."""

    client: Client
    relay: Relay
    kind: stack.ServerKind

    @property
    def handshakes(self):
        """The number of sessions that the client has opened."""
        return sum(m.get("method") == "initialize" for exchange in self.relay.exchanges for m in exchange.messages)

    @property
    def statuses(self):
        """The statuses of the calls' responses, `None` before."""
        return [exchange.status for exchange in self.relay.calls]

    @property
    def has_answered(self):
        """True if a server that asks once in each call has taken an answer for each so far, or asks nothing."""
        answers = [exchange.status for exchange in self.relay.exchanges if exchange.is_answer]
        return None not in answers and (not answers or len(answers) >= len(self.relay.calls))

    @property
    def has_answered_roots(self):
        """True if the server has taken the client's roots, or needs none."""
        return not self.kind.requests_roots or any(answer.status for answer in self.relay.answers)

    @property
    def listens(self):
        """True if the session's standalone stream is open."""
        return any(exchange.kind == "standalone" and exchange.status == 200 for exchange in self.relay.exchanges)

    def begin(self, key):
        tool, arguments, _ = self.kind.quick(key)
        self.client.begin(tool, arguments)

    async def ended_well(self, n, key):
        """True if call `n`, a quick one, has its result."""
        ending, words = await self.client.outcome(n) or ("no", "end")
        return ending == self.kind.ending and words.startswith(self.kind.quick(key)[2])

    def report(self):
        said = self.client.transcript
        return "\n".join([str(said.outcomes), self.relay.report(), *said.noise[-20:]])


@asynccontextmanager
async def sessions_at(port, server, key, clients=CLIENTS, **limits):
    """A session of each client, by its name, in which one quick call has ended. `server`: a name, or the kind."""
    kind = server_kind(server) if isinstance(server, str) else server
    tool, arguments, _ = kind.quick(key)
    async with AsyncExitStack() as running:

        async def open_one(name):
            relay = await running.enter_async_context(Relay(port))
            client = Client(name, LEGACY, relay.url(), tool, arguments, linger_ms=0, then=True, **limits)
            return Session(await running.enter_async_context(client), relay, kind)

        sessions = {name: await open_one(name) for name in clients}
        await assert_go_on(sessions, 0, key)
        # A server that ends refuses an answer, or breaks its connection: that would end the client of Python's SDK 1.x, not the call alone.
        await until_roots(sessions.values())
        yield sessions
        await together(*(session.client.finish() for session in sessions.values()))


async def until_roots(sessions):
    """Waits until the server has the roots of each session that it can still ask for them.

    The reference server asks 350 ms after the handshake, once. On a machine with much work the stream for its request may open later, and the request is lost.
    """
    asking = [session for session in sessions if session.kind.requests_roots]
    await eventually(lambda: all(session.has_answered_roots or session.listens for session in asking))
    with suppress(AssertionError):
        await eventually(lambda: all(session.has_answered_roots for session in asking), ROOTS_LIMIT)


async def assert_go_on(sessions, n, key):
    """Call `n` of each session has its result, and no client has opened another session."""
    for name, session in sessions.items():
        assert await session.ended_well(n, key), f"{name}: {session.report()}"
        assert session.handshakes == 1, f"{name}: {session.report()}"
