"""At 2026-07-28 a client that disconnects has cancelled its call, unless it resumes within the grace period."""

import asyncio
import time

import pytest

from harness import stack
from harness.checks import assert_runs, assert_whole
from harness.relay import Cut, Relay
from harness.stack import LEGACY, MODERN, SERVERS, Client, counters, eventually, run_client

pytestmark = pytest.mark.anyio

BOTH_ERAS = [name for name, kind in SERVERS.items() if MODERN in kind.eras]

# The default: twice the retry last written, and a second.
GRACE = 3.0


async def gone_in_mid_call(era, server, port, key):
    """Starts a call of a minute and kills its client after two progress notifications; returns the time of that, or an earlier one."""
    tool, arguments, _ = SERVERS[server].long(600, 100, key)
    async with Client("rmcp", era, f"http://127.0.0.1:{port}/mcp", tool, arguments) as client:
        await client.until(lambda said: said.progress[:2] == [1, 2])
        gone = time.monotonic()
        await client.kill()
        return gone


@pytest.mark.parametrize("server", BOTH_ERAS)
async def test_straight_to_the_server_it_is_cancelled_at_once(server, servers, key):
    await gone_in_mid_call(MODERN, server, servers[server], key)
    await eventually(lambda: counters(servers[server], key)["cancelled"] == 1)


@pytest.mark.parametrize("server", BOTH_ERAS)
async def test_a_client_gone_for_good_is_a_cancel_right_after_the_grace(server, servers, proxies, key):
    gone = await gone_in_mid_call(MODERN, server, proxies[server], key)
    await eventually(lambda: counters(servers[server], key)["cancelled"] == 1)
    assert time.monotonic() - gone > GRACE
    assert_runs(servers[server], key, finished=0, cancelled=1)


@pytest.mark.parametrize("server", BOTH_ERAS)
async def test_without_grace_it_is_a_cancel_at_once(server, servers, start, key):
    """The default for this `retry` would be longer than the call."""
    proxy = start(stack.start_proxy, servers[server], STREAMS__MODERN_GRACE_MS=0, DELIVERY__RETRY_MS=60_000)
    await gone_in_mid_call(MODERN, server, proxy.found["port"], key)
    await eventually(lambda: counters(servers[server], key)["cancelled"] == 1)


@pytest.mark.parametrize("server", BOTH_ERAS)
async def test_within_the_grace_the_server_notices_nothing(server, servers, start, key):
    """The server sees one request, on one unbroken connection."""
    tool, arguments, done = SERVERS[server].long(8, 250, key)
    async with Relay(servers[server]) as upstream:
        proxy = await asyncio.to_thread(start, stack.start_proxy, upstream.port)
        async with Relay(proxy.found["port"], Cut("event", 2)) as relay:
            said = await run_client("typescript-v2", MODERN, relay.url(), tool, arguments)
        assert_whole(relay, said, 8, done)
        assert_runs(servers[server], key)
        [call] = upstream.calls
        assert len(call.events) == 9
        assert upstream.resumes == []


async def test_before_that_revision_the_call_goes_on(servers, proxies, key):
    """A disconnect was no cancel then: the server runs to the end."""
    server = "python-mcp2"
    tool, arguments, _ = SERVERS[server].long(8, 250, key)
    url = f"http://127.0.0.1:{proxies[server]}/mcp"
    async with Client("rmcp", LEGACY, url, tool, arguments) as client:
        await client.until(lambda said: said.progress[:1] == [1])
        await client.kill()
    await eventually(lambda: counters(servers[server], key)["finished"] == 1)
    assert_runs(servers[server], key)
