"""Requests of a server (sampling, elicitation, roots) reach a client through a cut: once, and are answered once."""

import asyncio

import pytest

from harness import stack
from harness.checks import assert_runs
from harness.relay import Cut, Relay
from harness.stack import CLIENTS, LEGACY, Client, eventually, run_client

pytestmark = pytest.mark.anyio

ANSWERS = {"sampling": "sampled", "elicitation": "elicited", "roots": "file:///rooted"}

QUESTIONS = [
    ("typescript-v1", "sampling"),
    ("typescript-v1", "elicitation"),
    ("typescript-v1", "roots"),
    ("python-mcp1", "sampling"),
    ("fastmcp", "elicitation"),
]

# Time without new connections after the cut; the request is sent in the middle of it.
AWAY = 0.6


@pytest.mark.each_value
@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("server, kind", QUESTIONS)
async def test_asked_while_the_client_is_away(server, kind, client, servers, start, key):
    async with Relay(servers[server]) as upstream:
        proxy = await asyncio.to_thread(start, stack.start_proxy, upstream.port)
        async with Relay(proxy.found["port"], Cut("event", 1, away=AWAY)) as relay:
            arguments = {"kind": kind, "delay_ms": AWAY * 500, "key": key}
            said = await run_client(client, LEGACY, relay.url(), "ask", arguments)
        assert said.result == f"answered {ANSWERS[kind]}", (said.error, said.noise)
        assert said.asked == [kind]
        assert relay.cuts == 1
        assert len(relay.answers) == len(upstream.answers) == 1
        assert_runs(servers[server], key)


@pytest.mark.parametrize("client", CLIENTS)
async def test_asked_again_after_a_cut_behind_the_question(client, servers, start, key):
    """The request was delivered and the connection cut right behind it: the answer still counts once."""
    server = "typescript-v1"
    async with Relay(servers[server]) as upstream:
        proxy = await asyncio.to_thread(start, stack.start_proxy, upstream.port)
        # The first event is the progress notification, the second the server's request.
        async with Relay(proxy.found["port"], Cut("event", 2)) as relay:
            said = await run_client(client, LEGACY, relay.url(), "ask", {"kind": "sampling", "key": key})
        assert said.result == "answered sampled", (said.error, said.noise)
        assert said.asked == ["sampling"]
        assert len(upstream.answers) == 1


@pytest.mark.parametrize("client", CLIENTS)
async def test_the_answer_waits_for_a_server_that_refuses_connections(client, servers, start, key):
    """The call's own connection lives on; the client response is held, and arrives once."""
    server = "typescript-v1"
    async with Relay(servers[server]) as upstream:
        proxy = await asyncio.to_thread(start, stack.start_proxy, upstream.port)
        async with Relay(proxy.found["port"]) as relay:
            arguments = {"kind": "sampling", "delay_ms": 400, "key": key}
            async with Client(client, LEGACY, relay.url(), "ask", arguments) as asking:
                await asking.until(lambda said: said.progress == [1])
                upstream.refuse()
                await eventually(lambda: relay.answers and relay.answers[0].status)
                assert relay.answers[0].status == 202
                assert upstream.answers == []
                await upstream.listen()
                said = await asking.finish()
        assert said.result == "answered sampled", (said.error, said.noise)
        assert said.asked == ["sampling"]
        assert len(upstream.answers) == 1
