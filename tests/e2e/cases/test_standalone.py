"""The session's standalone stream: a server's messages outside of any call arrive through cuts, once and in order."""

import pytest

from harness.relay import Cut, Relay
from harness.stack import CLIENTS, LEGACY, Client, run_client

pytestmark = pytest.mark.anyio

SERVER = "typescript-v1"
STEPS, INTERVAL_MS = 8, 200


@pytest.mark.parametrize("client", CLIENTS)
async def test_notifications_across_a_cut(client, proxies, key):
    arguments = {"steps": STEPS, "interval_ms": INTERVAL_MS, "key": key}
    async with Relay(proxies[SERVER], Cut("event", 2, on="standalone")) as relay:
        async with Client(client, LEGACY, relay.url(), "announce", arguments, then=True) as calling:
            assert await calling.outcome(0) == ("result", f"announced {STEPS}"), calling.transcript.noise
            await calling.until(lambda said: len(said.logged) >= STEPS)
            said = await calling.finish()
        assert said.logged == list(range(1, STEPS + 1))
        assert relay.cuts == 1


@pytest.mark.one_case
@pytest.mark.parametrize("client", CLIENTS)
async def test_straight_to_the_server_some_are_lost(client, servers, key):
    arguments = {"steps": STEPS, "interval_ms": INTERVAL_MS, "key": key}
    async with Relay(servers[SERVER], Cut("event", 2, on="standalone", away=0.5)) as relay:
        said = await run_client(client, LEGACY, relay.url(), "announce", arguments, linger_ms=2_500)
        assert len(said.logged) < STEPS
        assert relay.cuts == 1
