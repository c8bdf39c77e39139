"""Servers on stdio at 2026-07-28, where all clients share a process: what works with a server on HTTP works there, once for each client."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from harness import stdio
from harness.checks import assert_whole
from harness.relay import Cut, Relay
from harness.stack import AUTO, CLIENTS, LEGACY, MODERN, PROTOCOL, Client, eventually, metric, run_client, together

pytestmark = pytest.mark.anyio

STEPS, INTERVAL_MS = 5, 100
# Long, since many processes start at once.
TIMEOUT_MS = 90_000
# The default: twice the retry last written, and a second.
GRACE = 3.0

SERVERS = [name for name, kind in stdio.LONG.items() if MODERN in kind.eras]
MODERN_CLIENTS = [name for name, kind in CLIENTS.items() if MODERN in kind.eras]
# Clients that ask for the revision, and fall back from it. The Python ones do so by default.
PROBING = [(name, MODERN if CLIENTS[name].is_python else AUTO) for name in MODERN_CLIENTS]
WHO = [(server, client, MODERN) for server in SERVERS for client in MODERN_CLIENTS]
WHO += [("typescript-v2", client, mode) for client, mode in PROBING if mode == AUTO]
# FastMCP has no subscriptions.
LISTENING = [name for name in MODERN_CLIENTS if name != "fastmcp"]
SENDING = [name for name in SERVERS if name != "fastmcp"]


def connected(said):
    """The revision that the client speaks with the server."""
    return said.lines[0][1]["protocol"]


@pytest.mark.each_value
@pytest.mark.parametrize("server, client, mode", WHO)
async def test_calls_that_are_cut_complete(server, client, mode, on_stdio, key):
    """Two clients call at once under the same IDs. Each call runs once, and its client gets its own messages; then tools are listed."""

    async def one(steps):
        tool, arguments, done = stdio.LONG[server].long(steps, INTERVAL_MS, f"{key}-{steps}")
        async with Relay(on_stdio[server], Cut("event", 2)) as relay:
            async with Client(client, mode, relay.url(), tool, arguments, then=True, timeout_ms=TIMEOUT_MS) as running:
                assert await running.outcome(0) == ("result", done), (relay.report(), running.transcript.noise)
                assert connected(running.transcript) == PROTOCOL[MODERN]
                assert_whole(relay, running.transcript, steps, done)
                assert (relay.cuts, len(relay.calls), len(relay.resumes)) == (1, 1, 1), relay.report()
                await running.list_tools(1)
                await running.finish()
        stdio.assert_runs(f"{key}-{steps}")
        [call] = relay.calls
        return call.messages[0]["id"]

    await stdio.start_shared(on_stdio[server])
    ids = await together(one(STEPS), one(STEPS + 1))
    assert ids[0] == ids[1]


@pytest.mark.each_value
@pytest.mark.parametrize("client", MODERN_CLIENTS)
@pytest.mark.parametrize("server", SERVERS)
async def test_a_question_that_is_cut_is_asked_once(server, client, on_stdio, key):
    """The result that asks is cut, and resumed. The call that brings the answer is another one."""
    await stdio.start_shared(on_stdio[server])
    async with Relay(on_stdio[server], Cut("final")) as relay:
        said = await run_client(client, MODERN, relay.url(), "input", {"key": key}, timeout_ms=TIMEOUT_MS)
        assert said.result == "answered elicited", (said.error, said.noise, relay.report())
        assert said.asked == ["elicitation"]
        assert (relay.cuts, len(relay.calls), len(relay.answers)) == (1, 2, 0), relay.report()
        stdio.assert_runs(key, started=2, finished=2)


@pytest.mark.parametrize("server", SENDING)
async def test_a_change_reaches_each_subscription_once(server, start):
    """Two clients of each SDK listen, under the same ID, and one of all has the server change."""
    proxy = await asyncio.to_thread(start, stdio.start_proxy, server)
    await stdio.start_shared(proxy.found["port"])
    url = f"http://127.0.0.1:{proxy.found['port']}/mcp"
    async with AsyncExitStack() as running:
        clients = [Client(name, MODERN, url, "quick", {}, then=True, timeout_ms=TIMEOUT_MS) for name in 2 * LISTENING]
        for listening in clients:
            await running.enter_async_context(listening)
        await together(*(listening.listen(1) for listening in clients))
        # A slow start is pinged, and its late result is skipped.
        late = metric(proxy.found["admin"], 'channel_messages_skipped_total{reason="late"}')
        for number in (1, 2):
            clients[0].begin("change", {})
            assert await clients[0].outcome(number + 1) == ("result", "changed"), clients[0].transcript.noise
            for listening in clients:
                await eventually(lambda said=listening.transcript: said.changed == ["tools"] * number)
        assert len(stdio.children(proxy.pid)) == 1
        assert metric(proxy.found["admin"], 'channel_messages_skipped_total{reason="late"}') == late


@pytest.mark.each_value
@pytest.mark.parametrize("client, mode", PROBING)
@pytest.mark.parametrize("server", [name for name, kind in stdio.LONG.items() if kind.eras == (LEGACY,)])
async def test_a_client_that_asks_falls_back(server, client, mode, on_stdio, key):
    """The server has sessions alone: the client opens one, and its call that is cut completes."""
    kind = stdio.LONG[server]
    tool, arguments, done = kind.long(STEPS, INTERVAL_MS, key)
    async with Relay(on_stdio[server], Cut("event", 2)) as relay:
        said = await run_client(client, mode, relay.url(), tool, arguments, timeout_ms=TIMEOUT_MS)
        assert_whole(relay, said, STEPS, done)
        assert connected(said) == PROTOCOL[LEGACY]
        assert relay.cuts == 1
        if not kind.foreign:
            stdio.assert_runs(key)


@pytest.mark.parametrize("server", SERVERS)
async def test_the_next_call_has_a_new_process(server, start, key):
    """The process is killed between the calls of all clients, and in a call, which fails at once."""
    settings = {"UPSTREAM__STARTS_PER_MINUTE": 6000}
    proxy = await asyncio.to_thread(start, stdio.start_proxy, server, **settings)
    await stdio.start_shared(proxy.found["port"])
    url = f"http://127.0.0.1:{proxy.found['port']}/mcp"
    async with AsyncExitStack() as running:
        clients = [Client(name, MODERN, url, "quick", {"key": key}, then=True, timeout_ms=TIMEOUT_MS) for name in MODERN_CLIENTS]
        for client in clients:
            await running.enter_async_context(client)
        for number in range(2):
            for client in clients:
                assert await client.outcome(number) == ("result", "quick"), client.transcript.noise
            assert stdio.kill_children(proxy.pid) == 1
            lost = number + 1
            await eventually(lambda: metric(proxy.found["admin"], 'channel_ends_total{reason="lost"}') == lost)
            for client in clients:
                client.begin("quick", {"key": key})
        for client in clients:
            assert await client.outcome(2) == ("result", "quick"), client.transcript.noise
        for client in clients:
            client.begin("long", {"steps": 1, "interval_ms": 60_000, "key": f"{key}-long"})
        await eventually(lambda: stdio.counters(f"{key}-long")["started"] == len(clients))
        assert stdio.kill_children(proxy.pid) == 1
        for client in clients:
            ending, words = await client.outcome(3)
            assert (ending, "ended" in words) == ("error", True), words
    stdio.assert_runs(key, started=3 * len(clients), finished=3 * len(clients))
    stdio.assert_runs(f"{key}-long", started=len(clients), finished=0)


@pytest.mark.parametrize("server", SERVERS)
async def test_a_client_gone_for_good_is_a_cancel_after_the_grace(server, on_stdio, key):
    """The call of another client in the same process goes on."""
    loop = asyncio.get_running_loop()
    await stdio.start_shared(on_stdio[server])
    url = f"http://127.0.0.1:{on_stdio[server]}/mcp"
    tool, arguments, _ = stdio.LONG[server].long(600, 100, key)
    stays = {"steps": 60, "interval_ms": 100, "key": f"{key}-stays"}
    async with Client("rmcp", MODERN, url, tool, stays, timeout_ms=TIMEOUT_MS) as staying:
        async with Client("rmcp", MODERN, url, tool, arguments, timeout_ms=TIMEOUT_MS) as leaving:
            for client in (staying, leaving):
                await client.until(lambda said: said.progress[:2] == [1, 2])
            gone = loop.time()
            await leaving.kill()
        await eventually(lambda: stdio.counters(key)["cancelled"] == 1)
        assert loop.time() - gone > GRACE
        assert (await staying.finish()).result == "done 60"
    stdio.assert_runs(key, finished=0, cancelled=1)
    stdio.assert_runs(f"{key}-stays")
