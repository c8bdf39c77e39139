"""Stock clients with calls in flight, for tests that disturb all of them at once."""

import contextlib

from harness import stack
from harness.checks import assert_ran_once, assert_whole
from harness.stack import CLIENTS, PROTOCOL, Client, together

WHO = [(name, era) for name, kind in CLIENTS.items() for era in kind.eras]
# Eight clients, at least one of each SDK.
LOAD = {
    era: [*(client for client, speaks in WHO if speaks == era), *["typescript-v2", "rmcp"] * 2][:8] for era in PROTOCOL
}
# The same number of clients that start quickly, for tests in which the SDK does not matter.
LIGHT = ["typescript-v1", "typescript-v2", "rmcp", "rmcp"] * 2

INTERVAL_MS = 100
# The first of eight clients waits for the last one to start; this is the longest wait of the TypeScript SDKs.
LIMIT_MS = 60_000


class Load:
    """`async with Load(…) as load`: stock clients, each with a call in flight that ends once `end` was called.

    `ports`: the ports of the servers at which a call may run.
    """

    def __init__(self, relay, ports, era, key, clients):
        self.relay, self.ports, self.key = relay, ports, key
        self.names = [f"{key}-{n}-{client}" for n, client in enumerate(clients)]
        self.clients = [self._client(client, era, name) for client, name in zip(clients, self.names, strict=True)]

    def _client(self, client, era, name):
        arguments = {"gate": self.key, "interval_ms": INTERVAL_MS, "key": name}
        return Client(client, era, self.relay.url(), "until_open", arguments, timeout_ms=LIMIT_MS)

    async def __aenter__(self):
        async with contextlib.AsyncExitStack() as under_way:
            for client in self.clients:
                await under_way.enter_async_context(client)
            # All calls run, and each has had a message.
            await together(*(client.until(lambda said: len(said.progress) >= 2) for client in self.clients))
            self._under_way = under_way.pop_all()
        return self

    async def __aexit__(self, *_):
        self.end()
        await self._under_way.aclose()

    def end(self):
        for port in self.ports:
            stack.open_gate(port, self.key)

    def clients_of(self, names):
        """The clients of these calls."""
        return [client for client, name in zip(self.clients, self.names, strict=True) if name in names]

    async def finish(self):
        """Each call by its key, and its client's transcript."""
        return list(zip(self.names, await together(*(client.finish() for client in self.clients)), strict=True))

    def assert_all_completed(self, told):
        for name, said in told:
            assert said.ending == "result", f"{name}: {said}\n{self.relay.report()}"
            assert_whole(self.relay, said, int(said.result.removeprefix("done ")), said.result)
            assert_ran_once(self.ports, name)


def assert_one_honest_error(relay, said):
    """Asserts that logged messages arrived once and in order, and that the client then got one honest error."""
    report = "\n".join([relay.report(), *said.noise, str(said)])
    assert said.ending == "error", report
    assert "the proxy that ran the call has died" in said.error, report
    assert said.progress == list(range(1, len(said.progress) + 1)), report
    assert [line["event"] for _, line in said.lines].count("error") == 1, report
