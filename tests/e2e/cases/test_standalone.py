"""The session's standalone stream: a server's messages outside of any call arrive through cuts, once and in order."""

from contextlib import asynccontextmanager

import pytest

from harness.relay import Cut, Relay
from harness.stack import CLIENTS, LEGACY, Client, eventually

pytestmark = pytest.mark.anyio

SERVER = "typescript-v1"
STEPS, INTERVAL_MS = 8, 200


@asynccontextmanager
async def announced(relay, client, key, **options):
    """A client whose standalone stream was open when the server began to send, and which has sent all."""
    async with Client(client, LEGACY, relay.url(), "quick", {"key": key}, then=True, **options) as calling:
        await eventually(lambda: any(exchange.kind == "standalone" and exchange.status == 200 for exchange in relay.exchanges))
        calling.begin("announce", {"steps": STEPS, "interval_ms": INTERVAL_MS, "key": key})
        assert await calling.outcome(1) == ("result", f"announced {STEPS}"), calling.transcript.noise
        yield calling


@pytest.mark.parametrize("client", CLIENTS)
async def test_notifications_across_a_cut(client, proxies, key):
    async with Relay(proxies[SERVER], Cut("event", 2, on="standalone")) as relay, announced(relay, client, key) as calling:
        await calling.until(lambda said: len(said.logged) >= STEPS)
        said = await calling.finish()
        assert said.logged == list(range(1, STEPS + 1))
        assert relay.cuts == 1


@pytest.mark.one_case
@pytest.mark.parametrize("client", CLIENTS)
async def test_straight_to_the_server_some_are_lost(client, servers, key):
    cut = Cut("event", 2, on="standalone", away=0.5)
    async with Relay(servers[SERVER], cut) as relay, announced(relay, client, key, linger_ms=2_500) as calling:
        said = await calling.finish()
        assert len(said.logged) < STEPS
        assert relay.cuts == 1
