"""A server that is restarted: for some seconds it refuses connections, and calls wait for it."""

import asyncio

import pytest

from harness import stack
from harness.checks import assert_runs
from harness.relay import Relay
from harness.stack import CLIENTS, SERVERS, Client, eventually, run_client

pytestmark = pytest.mark.anyio

SERVER = "typescript-v2"
# A server of any SDK is back after two seconds.
REFUSED = 2.0

PAIRS = [(client, era) for client, kind in CLIENTS.items() for era in kind.eras]


@pytest.mark.each_value
@pytest.mark.parametrize("client, era", PAIRS)
async def test_a_client_that_begins_while_the_server_is_away(client, era, servers, start, key):
    async with Relay(servers[SERVER]) as upstream:
        proxy = await asyncio.to_thread(start, stack.start_proxy, upstream.port)
        upstream.refuse()
        async with Relay(proxy.found["port"]) as relay:
            tool, arguments, done = SERVERS[SERVER].long(2, 10, key)
            async with Client(client, era, relay.url(), tool, arguments) as calling:
                await eventually(lambda: relay.exchanges)
                await asyncio.sleep(REFUSED)
                assert calling.transcript.error is None, calling.transcript.noise
                await upstream.listen()
                said = await calling.finish()
        assert said.result == done, (said.error, said.noise)
        assert_runs(servers[SERVER], key)


@pytest.mark.one_case
@pytest.mark.parametrize("client, era", PAIRS)
async def test_straight_to_the_server_the_client_fails(client, era, servers, key):
    async with Relay(servers[SERVER]) as upstream:
        upstream.refuse()
        tool, arguments, _ = SERVERS[SERVER].long(2, 10, key)
        said = await run_client(client, era, upstream.url(), tool, arguments)
    assert said.result is None
