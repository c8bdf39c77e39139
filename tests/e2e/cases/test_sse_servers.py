"""Servers on HTTP+SSE: what works with a server on Streamable HTTP works with a GET for each session."""

import asyncio

import pytest

from harness import stack
from harness.checks import assert_runs, assert_whole
from harness.relay import Cut, Relay
from harness.restarts import Restarted
from harness.sessions import assert_go_on, sessions_at
from harness.stack import LEGACY, Client

pytestmark = pytest.mark.anyio

STEPS, INTERVAL_MS = 5, 100

SERVERS = ["typescript-v1", "python-mcp1", "python-mcp1-22"]


@pytest.fixture(params=SERVERS)
async def sse(request, start):
    """A server on HTTP+SSE, its name, and the port of the proxy before it."""
    server = await asyncio.to_thread(Restarted, start, request.param, SSE="1")
    proxy = await asyncio.to_thread(start, stack.start_proxy_before_sse, f"http://127.0.0.1:{server.port}/sse")
    return server, request.param, proxy.found["port"]


async def test_a_call_that_is_cut_completes(sse, clients, key):
    """It runs once. In the same session tools are listed, and the server's question is answered."""
    server, name, port = sse
    kind = stack.server_kind(name)

    async def complete(client):
        own = f"{key}-{client}"
        tool, arguments, done = kind.long(STEPS, INTERVAL_MS, own)
        async with Relay(port, Cut("event", 2)) as relay:
            async with Client(client, LEGACY, relay.url(), tool, arguments, then=True) as running:
                assert await running.outcome(0) == ("result", done), relay.report()
                assert_whole(relay, running.transcript, STEPS, done)
                assert relay.cuts == 1
                assert_runs(server.port, own)
                await running.list_tools(1)
                running.begin("ask", {"kind": "elicitation", "key": f"{own}-ask"})
                assert await running.outcome(2) == ("result", "answered elicited"), relay.report()
                assert_runs(server.port, f"{own}-ask")
                await running.finish()

    await stack.together(*(complete(client) for client in clients))


@pytest.mark.parametrize("name", ["typescript-v1", "python-mcp1-22"])
async def test_a_server_is_recognised_at_the_url_of_one_on_streamable_http(name, clients, start, key):
    """Clients of Streamable HTTP get sessions, and a call that is cut completes in them."""
    server = await asyncio.to_thread(Restarted, start, name, SSE="1")
    proxy = await asyncio.to_thread(start, stack.start_proxy_before, f"http://127.0.0.1:{server.port}/sse")
    kind = stack.server_kind(name)

    async def complete(client):
        own = f"{key}-{client}"
        tool, arguments, done = kind.long(STEPS, INTERVAL_MS, own)
        async with Relay(proxy.found["port"], Cut("event", 2)) as relay:
            async with Client(client, LEGACY, relay.url("/sse"), tool, arguments, then=True) as running:
                assert await running.outcome(0) == ("result", done), relay.report()
                assert_whole(relay, running.transcript, STEPS, done)
                assert_runs(server.port, own)
                await running.finish()

    await stack.together(*(complete(client) for client in clients))


async def test_sessions_go_on_after_a_restart_of_the_server(sse, clients, key):
    server, name, port = sse
    async with sessions_at(port, name, key, clients) as sessions:
        await server.restart()
        for session in sessions.values():
            session.begin(key)
        await assert_go_on(sessions, 1, key)
