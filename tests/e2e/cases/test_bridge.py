"""Clients of 2026-07-28 alone in front of servers that speak the revisions with sessions alone. Each tool runs once."""

import asyncio
from contextlib import suppress

import pytest

from harness import stack, stdio
from harness.checks import assert_runs
from harness.probes import SDKS, Probing
from harness.relay import Cut, Relay
from harness.restarts import Restarted
from harness.sessions import ROOTS_LIMIT
from harness.stack import AUTO, LEGACY, MODERN, PROTOCOL, TASK_CLIENTS, Client, eventually, run_client
from harness.tasks import handles

pytestmark = pytest.mark.anyio

CLIENTS = ["typescript-v2", "fastmcp", "python-mcp2", "rmcp"]
SERVERS = ["typescript-v1", "python-mcp1"]


@pytest.fixture
def bridged(start, servers):
    async def run(server):
        return await asyncio.to_thread(start, stack.start_proxy, servers[server], BRIDGE__MODERN_CLIENTS="always")

    return run


@pytest.mark.each_value
@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("client", CLIENTS)
async def test_a_call_has_its_progress_and_its_result(client, server, bridged, servers, key):
    proxy = await bridged(server)
    async with Relay(proxy.found["port"]) as relay:
        said = await run_client(client, MODERN, relay.url(), "long", {"steps": 3, "interval_ms": 100, "key": key})
        assert (said.result, said.error) == ("done 3", None), relay.report()
        assert said.progress == [1, 2, 3], relay.report()
    assert_runs(servers[server], key)


ANSWERS = {"sampling": "sampled", "elicitation": "elicited", "roots": "file:///rooted"}
QUESTIONS = [*(("typescript-v1", kind) for kind in ANSWERS), ("python-mcp1", "sampling"), ("python-mcp1", "elicitation")]


@pytest.mark.each_value
@pytest.mark.parametrize("server, kind", QUESTIONS)
@pytest.mark.parametrize("client", CLIENTS)
async def test_a_question_is_answered_within_the_one_run(client, server, kind, bridged, servers, key):
    proxy = await bridged(server)
    async with Relay(proxy.found["port"]) as relay:
        said = await run_client(client, MODERN, relay.url(), "ask", {"kind": kind, "key": key})
        assert (said.result, said.error) == (f"answered {ANSWERS[kind]}", None), relay.report()
        assert said.asked == [kind], relay.report()
    assert_runs(servers[server], key)


EVERYTHING = [("trigger-sampling-request", {"prompt": "p", "maxTokens": 10}), ("trigger-elicitation-request", {})]


@pytest.mark.each_value
@pytest.mark.parametrize("tool, arguments", EVERYTHING)
@pytest.mark.parametrize("client", CLIENTS)
async def test_a_question_of_server_everything_is_answered(client, tool, arguments, bridged):
    """Its tools that ask are there for clients alone that declare what they ask for. It asks for the roots as soon as it can."""
    kind = "sampling" if "sampling" in tool else "elicitation"
    proxy = await bridged("everything")
    async with Relay(proxy.found["port"]) as relay:
        said = await run_client(client, MODERN, relay.url(), tool, arguments)
        assert said.error is None, relay.report()
        assert [asked for asked in said.asked if asked != "roots"] == [kind], relay.report()
        assert ANSWERS[kind] in said.result or "User provided" in said.result, relay.report()
        assert len(relay.calls) == 2, relay.report()


@pytest.mark.each_value
@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("client", CLIENTS)
async def test_several_questions_are_answered_within_the_one_run(client, at_once, bridged, servers, key):
    proxy = await bridged("typescript-v1")
    async with Relay(proxy.found["port"]) as relay:
        said = await run_client(client, MODERN, relay.url(), "survey", {"at_once": at_once, "key": key})
        assert (said.result, said.error) == ("answered sampled elicited", None), relay.report()
        assert sorted(said.asked) == ["elicitation", "sampling"], relay.report()
        # Those asked at once are one round.
        assert len(relay.calls) == (2 if at_once else 3), relay.report()
    assert_runs(servers["typescript-v1"], key)


@pytest.mark.each_value
@pytest.mark.parametrize("server", ["typescript-v1-stateless", "typescript-v1-json", "everything"])
@pytest.mark.parametrize("client", CLIENTS)
async def test_servers_of_other_habits(client, server, bridged, servers, key):
    """One without sessions, one that answers with JSON, one that asks for roots after the handshake."""
    proxy = await bridged(server)
    kind = stack.server_kind(server)
    tool, arguments, done = kind.long(3, 200, key)
    async with Relay(proxy.found["port"]) as relay:
        said = await run_client(client, MODERN, relay.url(), tool, arguments)
        assert (said.result, said.error) == (done, None), relay.report()
    if not kind.foreign:
        assert_runs(servers[server], key)


@pytest.mark.each_value
@pytest.mark.parametrize("server", ["typescript-v1", "python-mcp1"])
@pytest.mark.parametrize("client", CLIENTS)
async def test_servers_on_other_transports(client, server, start, key):
    """On stdio and on HTTP+SSE: a call with its progress, and a question."""
    on_sse = await asyncio.to_thread(lambda: start(stack.start_server, server, SSE="1"))
    before_sse = await asyncio.to_thread(
        start,
        stack.start_proxy_before_sse,
        f"http://127.0.0.1:{on_sse.found['port']}/sse",
        BRIDGE__MODERN_CLIENTS="always",
    )
    on_stdio = await asyncio.to_thread(start, stdio.start_proxy, server, BRIDGE__MODERN_CLIENTS="always")
    for proxy in (before_sse, on_stdio):
        async with Relay(proxy.found["port"]) as relay:
            run = Client(client, MODERN, relay.url(), "long", {"steps": 3, "interval_ms": 100, "key": key}, then=True)
            async with run as running:
                running.begin("ask", {"kind": "elicitation", "key": f"{key}-ask"})
                assert await running.outcome(1) == ("result", "answered elicited"), relay.report()
                said = await running.finish()
            assert said.outcomes[0] == ("result", "done 3"), relay.report()
            assert said.asked == ["elicitation"]


@pytest.mark.parametrize("client", ["typescript-v2"])
async def test_a_subscription_is_opened(client, bridged, servers, key):
    proxy = await bridged("everything")
    async with Relay(proxy.found["port"]) as relay:
        async with Client(client, MODERN, relay.url(), "echo", {"message": "a"}, then=True) as running:
            assert await running.outcome(0) == ("result", "Echo: a"), relay.report()
            await running.listen(1)
            await running.finish()


@pytest.mark.each_value
@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("client", TASK_CLIENTS)
async def test_a_slow_tool_is_a_task_with_its_question(client, server, start, servers, key):
    proxy = await asyncio.to_thread(
        start, stack.start_proxy, servers[server], BRIDGE__MODERN_CLIENTS="always", **stack.TASKS
    )
    async with Relay(proxy.found["port"]) as relay:
        slow = {"steps": 8, "interval_ms": 250, "key": key}
        async with Client(client, MODERN, relay.url(), "long", slow, then=True) as running:
            assert await running.outcome(0) == ("result", "done 8"), relay.report()
            running.begin("ask", {"kind": "elicitation", "delay_ms": 1500, "key": f"{key}-ask"})
            assert await running.outcome(1) == ("result", "answered elicited"), relay.report()
            said = await running.finish()
            assert said.asked == ["elicitation"], relay.report()
        assert len(handles(relay)) == 2, relay.report()
    assert_runs(servers[server], key)
    assert_runs(servers[server], f"{key}-ask")


@pytest.mark.each_value
@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("client", CLIENTS)
async def test_a_server_that_was_restarted_is_called_on(client, server, start, key):
    restarted = await asyncio.to_thread(Restarted, start, server)
    proxy = await asyncio.to_thread(start, stack.start_proxy, restarted.port, BRIDGE__MODERN_CLIENTS="always")
    async with Relay(proxy.found["port"]) as relay:
        async with Client(client, MODERN, relay.url(), "quick", {"key": key}, then=True) as running:
            assert await running.outcome(0) == ("result", "quick"), relay.report()
            await restarted.restart()
            running.begin("quick", {"key": f"{key}-2"})
            assert await running.outcome(1) == ("result", "quick"), relay.report()
            await running.finish()
    assert_runs(restarted.port, f"{key}-2")


@pytest.mark.parametrize("client", CLIENTS[:1])
async def test_a_cut_call_is_resumed(client, bridged, servers, key):
    proxy = await bridged("typescript-v1")
    async with Relay(proxy.found["port"], Cut("event", 1)) as relay:
        said = await run_client(client, MODERN, relay.url(), "long", {"steps": 5, "interval_ms": 100, "key": key})
        assert (said.result, relay.cuts, bool(relay.resumes)) == ("done 5", 1, True), relay.report()
    assert_runs(servers["typescript-v1"], key)


# Clients that ask for 2026-07-28 first, and fall back. The Python ones do so by default.
PROBING = [("typescript-v2", AUTO), ("fastmcp", MODERN), ("python-mcp2", MODERN), ("rmcp", AUTO)]
OLDER = ["typescript-v1", "typescript-v1-stateless", "typescript-v1-json", "python-mcp1", "everything"]


@pytest.mark.each_value
@pytest.mark.parametrize("server", OLDER)
@pytest.mark.parametrize("client, mode", PROBING)
async def test_clients_that_fall_back_are_as_without_the_bridge(client, mode, server, start, servers, key):
    """By default the server gets the same messages from them, byte for byte, as with the bridge switched off."""

    async def call(relay, tool, arguments):
        async with Client(client, mode, relay.url(), tool, arguments, then=True) as running:
            await running.outcome(0)
            await has_answered(relay, server, 2)
            said = await running.finish()
        assert said.error is None
        return said.result, said.progress

    recorded = [await record(setting, start, servers, server, key, call) for setting in ("auto", "never")]
    assert recorded[0] == recorded[1]


@pytest.mark.parametrize("client, mode", PROBING)
async def test_a_server_that_lists_older_revisions_alone_is_as_without_the_proxy(client, mode, start, key):
    """As servers in Go answer `server/discover`. Clients choose one of the list; rmcp ends, since it asked for none of them."""
    server = await asyncio.to_thread(start, stack.start_server, "typescript-v1", DISCOVER="1")
    proxy = await asyncio.to_thread(start, stack.start_proxy, server.found["port"])
    ends = []
    for port in (server.found["port"], proxy.found["port"]):
        async with Relay(port) as relay:
            said = await run_client(client, mode, relay.url(), "quick", {"key": f"{key}-{port}"})
        ends.append((said.lines[0][1].get("protocol"), said.result, said.error))
        if client != "rmcp":
            assert ends[-1] == (PROTOCOL[LEGACY], "quick", None), (relay.report(), said.noise)
            assert_runs(server.found["port"], f"{key}-{port}")
    assert ends[0] == ends[1]


@pytest.mark.each_value
@pytest.mark.parametrize("server", OLDER)
@pytest.mark.parametrize("sdk", SDKS)
async def test_scripted_clients_that_fall_back_are_as_without_the_bridge(sdk, server, start, servers, key):
    async def call(relay, tool, arguments):
        client = Probing(sdk, relay.port)
        await client.connect()
        assert not client.is_modern
        said = await client.call(tool, arguments)
        if "roots" in SDKS[sdk].capabilities:
            await has_answered(relay, server, 2)
        await client.close()
        return said

    recorded = [await record(setting, start, servers, server, key, call) for setting in ("auto", "never")]
    assert recorded[0] == recorded[1]


@pytest.mark.each_value
@pytest.mark.parametrize("server", OLDER)
@pytest.mark.parametrize("sdk", SDKS)
async def test_scripted_clients_are_bridged_always(sdk, server, bridged, servers, key):
    proxy = await bridged(server)
    kind = stack.server_kind(server)
    client = Probing(sdk, proxy.found["port"])
    await client.connect()
    assert client.is_modern
    tool, arguments, done = kind.long(2, 100, key)
    assert (await client.call(tool, arguments))[0] == done
    await client.close()
    if not kind.foreign:
        assert_runs(servers[server], key)


class Lost(Exception):
    """The server's request for roots came before its client listened: it is lost, and is not sent again."""


async def has_answered(relay, server, times):
    """Waits until so many clients have answered the server that asks each of them once, 350 ms after its handshake."""
    if server == "everything":
        try:
            await eventually(lambda: len([answer for answer in relay.answers if answer.status]) == times, ROOTS_LIMIT)
        except AssertionError as silence:
            raise Lost(relay.report()) from silence


async def record(setting, start, servers, server, key, call):
    """As `record_once`, again where a request of the server was lost on a slow machine: two runs are compared as wholes."""
    for attempt in range(4):
        with suppress(Lost):
            return await record_once(setting, start, servers, server, f"{key}-{attempt}", call)
    return await record_once(setting, start, servers, server, f"{key}-4", call)


async def record_once(setting, start, servers, server, key, call):
    """Has a client call the long tool through a proxy with this setting. Returns the POSTs at both sides of the proxy, and what the client said."""
    kind = stack.server_kind(server)
    own = f"{key}-{setting}"
    async with Relay(servers[server]) as upstream:
        proxy = await asyncio.to_thread(start, stack.start_proxy, upstream.port, BRIDGE__MODERN_CLIENTS=setting)
        async with Relay(proxy.found["port"]) as relay:
            # A client of an older revision has shown before whether the server assigns sessions.
            async with Client("typescript-v1", LEGACY, relay.url(), *kind.quick(f"{own}-0")[:2], then=True) as older:
                await older.outcome(0)
                await has_answered(relay, server, 1)
                await older.finish()
            tool, arguments, done = kind.long(2, 100, own)
            said = await call(relay, tool, arguments)
            assert said[0] == done, relay.report()
        posts = [[exchange for exchange in side.exchanges if exchange.method == "POST"] for side in (upstream, relay)]
    # What a client answers to the server's own questions may come between any of its requests.
    bodies = [sorted((bytes(post.body).replace(own.encode(), b"key"), post.status) for post in side) for side in posts]
    return bodies, said[1]
