"""Stock clients with calls under way, for tests in which something happens to all of them."""

import contextlib

from harness import stack
from harness.checks import assert_ran_once, assert_whole
from harness.stack import CLIENTS, PROTOCOL, Client, together

WHO = [(name, era) for name, kind in CLIENTS.items() for era in kind.eras]
# Eight at once, of each SDK at least one.
LOAD = {
    era: [*(client for client, speaks in WHO if speaks == era), *["typescript-v2", "rmcp"] * 2][:8] for era in PROTOCOL
}
# The same number of those that start soon, where it does not matter whose they are.
LIGHT = ["typescript-v1", "typescript-v2", "rmcp", "rmcp"] * 2

INTERVAL_MS = 100
# The first of eight clients waits for the last one to start; the TypeScript SDKs wait no longer than this.
LIMIT_MS = 60_000


class Load:
    """`async with Load(…) as load`: stock clients, each with a call under way that ends once `end` was called.

    `ports`: where the servers are that a call may run at.
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
            # All of them run, and something was said in each.
            await together(*(client.until(lambda said: len(said.progress) >= 2) for client in self.clients))
            self._under_way = under_way.pop_all()
        return self

    async def __aexit__(self, *_):
        self.end()
        await self._under_way.aclose()

    def end(self):
        for port in self.ports:
            stack.open_gate(port, self.key)

    def those(self, names):
        """The clients of these calls."""
        return [client for client, name in zip(self.clients, self.names, strict=True) if name in names]

    async def finish(self):
        """Each call by its key, and what its client said."""
        return list(zip(self.names, await together(*(client.finish() for client in self.clients)), strict=True))

    def assert_all_completed(self, told):
        for name, said in told:
            assert said.ending == "result", f"{name}: {said}\n{self.relay.story()}"
            assert_whole(self.relay, said, int(said.result.removeprefix("done ")), said.result)
            assert_ran_once(self.ports, name)


def assert_one_honest_error(relay, said):
    """What was logged arrived once and in order, and then the client was told what happened."""
    story = "\n".join([relay.story(), *said.noise, str(said)])
    assert said.ending == "error", story
    assert "the proxy that ran the call has died" in said.error, story
    assert said.progress == list(range(1, len(said.progress) + 1)), story
    assert [line["event"] for _, line in said.lines].count("error") == 1, story
