"""Clients of 2026-07-28 alone in front of servers that speak the revisions with sessions alone. Each tool runs once."""

import asyncio

import pytest

from harness import stack
from harness.checks import assert_runs
from harness.relay import Cut, Relay
from harness.stack import MODERN, run_client

pytestmark = pytest.mark.anyio

CLIENTS = ["typescript-v2", "fastmcp", "python-mcp2", "rmcp"]
SERVERS = ["typescript-v1", "python-mcp1"]


@pytest.fixture
def bridged(start, servers):
    async def run(server):
        return await asyncio.to_thread(start, stack.start_proxy, servers[server], BRIDGE__MODERN_CLIENTS="always")

    return run


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("client", CLIENTS)
async def test_a_call_has_its_progress_and_its_result(client, server, bridged, servers, key):
    proxy = await bridged(server)
    async with Relay(proxy.found["port"]) as relay:
        said = await run_client(client, MODERN, relay.url(), "long", {"steps": 3, "interval_ms": 100, "key": key})
        assert (said.result, said.error) == ("done 3", None), relay.report()
        assert said.progress == [1, 2, 3], relay.report()
    assert_runs(servers[server], key)


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("client", CLIENTS)
async def test_a_question_is_answered_within_the_one_run(client, server, bridged, servers, key):
    proxy = await bridged(server)
    async with Relay(proxy.found["port"]) as relay:
        said = await run_client(client, MODERN, relay.url(), "ask", {"kind": "elicitation", "key": key})
        assert (said.result, said.error) == ("answered elicited", None), relay.report()
    assert_runs(servers[server], key)


@pytest.mark.parametrize("client", CLIENTS[:1])
async def test_a_cut_call_is_resumed(client, bridged, servers, key):
    proxy = await bridged("typescript-v1")
    async with Relay(proxy.found["port"], Cut("event", 1)) as relay:
        said = await run_client(client, MODERN, relay.url(), "long", {"steps": 5, "interval_ms": 100, "key": key})
        assert (said.result, relay.cuts, bool(relay.resumes)) == ("done 5", 1, True), relay.report()
    assert_runs(servers["typescript-v1"], key)
