"""Clients of the revisions with sessions in front of servers that speak 2026-07-28 alone. A tool that asks runs once for each round."""

import asyncio

import pytest

from harness import stack
from harness.checks import assert_runs
from harness.modern_only import ModernOnly
from harness.raw import ask, call, open_session, until_progress
from harness.relay import Cut, Relay
from harness.stack import LEGACY, Client, counters, eventually, run_client

pytestmark = pytest.mark.anyio

CLIENTS = list(stack.CLIENTS)
SERVERS = ["typescript-v2", "python-mcp2", "fastmcp", "rmcp"]


@pytest.fixture
async def modern_only(start, servers):
    """The port of a server that refuses `initialize`, by its own option or for want of one by a shim in front of it, and that of its counters."""
    shims = []

    async def run(server):
        if server == "typescript-v2":
            process = await asyncio.to_thread(start, stack.start_server, server, LEGACY="reject")
            return process.found["port"], process.found["port"]
        port = servers[server] if server in servers else (await asyncio.to_thread(start, stack.start_server, server)).found["port"]
        shims.append(await ModernOnly(port).__aenter__())
        return shims[-1].port, port

    yield run
    for shim in shims:
        await shim.__aexit__()


@pytest.fixture
async def bridged(start, modern_only):
    """Starts a proxy in front of such a server."""

    async def run(server, **settings):
        port, counted = await modern_only(server)
        proxy = await asyncio.to_thread(start, stack.start_proxy, port, BRIDGE__LEGACY_CLIENTS="auto", **settings)
        return proxy.found["port"], counted

    return run


@pytest.mark.parametrize("server", SERVERS)
async def test_without_the_bridge_a_client_is_refused(server, start, modern_only, key):
    port, _ = await modern_only(server)
    proxy = await asyncio.to_thread(start, stack.start_proxy, port, BRIDGE__LEGACY_CLIENTS="never")
    async with Relay(proxy.found["port"]) as relay:
        said = await run_client("typescript-v1", LEGACY, relay.url(), "quick", {"key": key})
    assert said.result is None


@pytest.mark.each_value
@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("client", CLIENTS)
async def test_a_call_has_its_progress_and_its_result(client, server, bridged, key):
    port, counted = await bridged(server)
    async with Relay(port) as relay:
        said = await run_client(client, LEGACY, relay.url(), "long", {"steps": 3, "interval_ms": 100, "key": key})
        assert (said.result, said.error) == ("done 3", None), relay.report()
        assert said.progress == [1, 2, 3], relay.report()
    assert_runs(counted, key)


@pytest.mark.each_value
@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("client", CLIENTS)
async def test_a_question_is_a_request(client, server, bridged, key):
    port, _ = await bridged(server)
    async with Relay(port) as relay:
        said = await run_client(client, LEGACY, relay.url(), "input", {"key": key})
        assert (said.result, said.error) == ("answered elicited", None), relay.report()
        assert said.asked == ["elicitation"], relay.report()


@pytest.mark.each_value
@pytest.mark.parametrize("kind, answer", [("sampling", "sampled"), ("roots", "file:///rooted")])
@pytest.mark.parametrize("client", CLIENTS)
async def test_sampling_and_roots_are_requests(client, kind, answer, bridged, key):
    port, _ = await bridged("typescript-v2")
    async with Relay(port) as relay:
        said = await run_client(client, LEGACY, relay.url(), "input", {"kind": kind, "key": key})
        assert (said.result, said.asked) == (f"answered {answer}", [kind]), relay.report()


@pytest.mark.each_value
@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("client", CLIENTS)
async def test_a_cut_call_is_resumed(client, server, bridged, key):
    port, counted = await bridged(server)
    async with Relay(port, Cut("event", 1)) as relay:
        said = await run_client(client, LEGACY, relay.url(), "long", {"steps": 5, "interval_ms": 100, "key": key})
        assert (said.result, relay.cuts, bool(relay.resumes)) == ("done 5", 1, True), relay.report()
        assert said.progress == [1, 2, 3, 4, 5], relay.report()
    assert_runs(counted, key)


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_question_survives_a_cut(client, bridged, key):
    port, _ = await bridged("typescript-v2")
    async with Relay(port, Cut("event", 1)) as relay:
        said = await run_client(client, LEGACY, relay.url(), "input", {"key": key})
        assert (said.result, said.asked) == ("answered elicited", ["elicitation"]), relay.report()


@pytest.mark.each_value
@pytest.mark.parametrize("server", ["typescript-v2", "python-mcp2"])
@pytest.mark.parametrize("client", ["typescript-v1", "python-mcp1"])
async def test_the_change_of_a_list_is_told_on_the_sessions_stream(client, server, bridged):
    port, _ = await bridged(server)
    async with Relay(port) as relay:
        async with Client(client, LEGACY, relay.url(), "change", {}, then=True) as calling:
            assert await calling.outcome(0) == ("result", "changed"), relay.report()
            await calling.until(lambda said: said.changed)
            said = await calling.finish()
        assert said.changed == ["tools"], relay.report()


@pytest.mark.parametrize("client", ["typescript-v1", "python-mcp1", "fastmcp"])
async def test_a_session_survives_a_restart_of_the_proxy(client, start, modern_only, key, tmp_path):
    port, _ = await modern_only("typescript-v2")
    listen = stack.free_port()

    def begin():
        kept = {"STORE__KIND": "disk", "STORE__PATH": tmp_path / "store"}
        return start(stack.start_proxy, port, listen, BRIDGE__LEGACY_CLIENTS="auto", **kept)

    proxy = await asyncio.to_thread(begin)
    async with Client(client, LEGACY, f"http://127.0.0.1:{listen}/mcp", "quick", {"key": key}, then=True) as calls:
        assert await calls.outcome(0) == ("result", "quick")
        await asyncio.to_thread(proxy.stop)
        await asyncio.to_thread(begin)
        calls.begin("quick", {"key": key})
        assert await calls.outcome(1) == ("result", "quick")


async def test_a_cancel_ends_the_call_at_the_server(bridged, key):
    port, counted = await bridged("typescript-v2")
    session = await open_session(port)
    answer = await ask(port, body=call(3, "long", steps=100, interval_ms=50, key=key), **session)
    await until_progress(answer, 1)
    cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 3}}
    assert (await ask(port, body=cancel, **session)).status == 202
    await eventually(lambda: counters(counted, key)["cancelled"] == 1)
    answer.reset()


async def test_the_end_of_a_session_is_the_end_of_its_calls(bridged, key):
    port, counted = await bridged("typescript-v2")
    session = await open_session(port)
    answer = await ask(port, body=call(3, "long", steps=100, interval_ms=50, key=key), **session)
    await until_progress(answer, 1)
    assert (await ask(port, method="DELETE", **session)).status == 200
    await eventually(lambda: counters(counted, key)["cancelled"] == 1)
    answer.reset()
