"""A client that never resumes a POST gets the response of a call that was cut on the GET stream of its session."""

import pytest

from harness.checks import assert_runs
from harness.relay import Cut, Relay
from harness.stack import LEGACY, SERVERS, counters, run_client

pytestmark = pytest.mark.anyio

CLIENT = "ai-sdk"
OWN = ["typescript-v1", "typescript-v1-json", "python-mcp1", "everything"]
CUTS = {"in-the-silence": Cut("silence", 700), "in-the-response": Cut("final")}
# The client waits for ever: this is the time of observation.
LIMIT_MS = 8_000


@pytest.mark.each_value
@pytest.mark.parametrize("server", OWN)
@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
async def test_the_result_reaches_the_model(cut, server, servers, proxies, key):
    tool, arguments, done = SERVERS[server].long(3, 400, key)
    async with Relay(proxies[server], cut) as relay:
        said = await run_client(CLIENT, LEGACY, relay.url(), tool, arguments)
        assert (said.result, said.error, relay.cuts) == (done, None, 1), f"{relay.report()}\n{said.noise}"
        assert len(relay.calls) == 1
        if not SERVERS[server].foreign:
            assert_runs(servers[server], key)


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
async def test_straight_to_the_server_it_waits_for_ever(cut, servers, key):
    server = "typescript-v1"
    tool, arguments, _ = SERVERS[server].long(3, 400, key)
    async with Relay(servers[server], cut) as relay:
        said = await run_client(CLIENT, LEGACY, relay.url(), tool, arguments, timeout_ms=LIMIT_MS)
        assert (said.ending, relay.cuts) == ("hang", 1), f"{relay.report()}\n{said.noise}"
        assert counters(servers[server], key)["started"] == 1


async def test_an_uncut_call_goes_no_other_way(servers, proxies, key):
    server = "typescript-v1"
    tool, arguments, done = SERVERS[server].long(3, 100, key)
    async with Relay(proxies[server]) as relay:
        said = await run_client(CLIENT, LEGACY, relay.url(), tool, arguments, linger_ms=500)
        assert (said.result, said.error) == (done, None), said.noise
        by_get = [event for exchange in relay.exchanges if exchange.kind == "standalone" for event in exchange.events]
        assert [event for event in by_get if '"result"' in event.data] == []
