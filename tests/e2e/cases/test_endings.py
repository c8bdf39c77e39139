"""After any end of a call, its client does not go on asking for it."""

import pytest

from harness import stack
from harness.checks import assert_whole
from harness.relay import Cut, Relay
from harness.stack import CLIENTS, LEGACY, MODERN, SERVERS, Client, run_client

pytestmark = pytest.mark.anyio

WHO = [(name, era) for name, kind in CLIENTS.items() for era in kind.eras]

# Time that a client stays after the end, which is several times its interval of resumptions.
LINGER_MS = 5_000


def server_for(era):
    return {LEGACY: "typescript-v1", MODERN: "typescript-v2"}[era]


def assert_quiet(relay, said, client):
    """TypeScript v1 resumes once for the stream whose failure it saw, and is told that there are no more events."""
    late = [exchange for exchange in relay.exchanges if exchange.began > said.ended_at and exchange.method != "DELETE"]
    assert [exchange.status for exchange in late] in ([], [204]), (client, relay.report())


@pytest.mark.each_value("ending")
@pytest.mark.parametrize("client, era", WHO)
async def test_after_a_result(client, era, proxies, key):
    server = server_for(era)
    tool, arguments, done = SERVERS[server].long(3, 100, key)
    async with Relay(proxies[server], Cut("final")) as relay:
        said = await run_client(client, era, relay.url(), tool, arguments, linger_ms=LINGER_MS)
        assert_whole(relay, said, 3, done)
        assert_quiet(relay, said, client)


@pytest.mark.each_value("ending")
@pytest.mark.parametrize("client, era", WHO)
async def test_after_the_death_of_the_server(client, era, start, key):
    server = server_for(era)
    dying = start(stack.start_server, server)
    proxy = start(stack.start_proxy, dying.found["port"])
    tool, arguments, _ = SERVERS[server].long(50, 100, key)
    async with (
        Relay(proxy.found["port"]) as relay,
        Client(client, era, relay.url(), tool, arguments, linger_ms=LINGER_MS) as calling,
    ):
        await calling.until(lambda said: said.progress[:2] == [1, 2])
        dying.kill()
        said = await calling.finish()
        assert said.ending == "error", relay.report()
        assert_quiet(relay, said, client)


@pytest.mark.each_value("ending")
@pytest.mark.parametrize("client, era", WHO)
async def test_after_the_loss_of_the_stream(client, era, servers, proxies, start, key):
    """The proxy was replaced by one that does not know the call: the client gets an error for its request."""
    server = server_for(era)
    other = start(stack.start_proxy, servers[server])
    tool, arguments, _ = SERVERS[server].long(50, 100, key)
    async with (
        Relay(proxies[server], Cut("event", 2)) as relay,
        Client(client, era, relay.url(), tool, arguments, linger_ms=LINGER_MS) as calling,
    ):
        await calling.until(lambda said: said.progress[:1] == [1])
        relay.redirect(other.found["port"])
        said = await calling.finish()
        assert (said.progress, said.ending) == ([1, 2], "error"), relay.report()
        assert_quiet(relay, said, client)
