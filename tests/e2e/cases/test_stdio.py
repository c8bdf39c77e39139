"""Servers on stdio: what works with a server on HTTP works with a process for each session."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from harness import stdio
from harness.checks import assert_whole
from harness.raw import ask, call, open_session, until_progress
from harness.relay import Cut, Relay
from harness.sessions import assert_go_on, sessions_at
from harness.stack import CLIENTS, LEGACY, Client, eventually, metric, together

pytestmark = pytest.mark.anyio

STEPS, INTERVAL_MS = 5, 100
# Long, since many processes start at once.
TIMEOUT_MS = 90_000

# Servers that ask in a call.
ASKING = ["typescript-v1", "python-mcp1", "python-mcp2", "fastmcp"]
# Servers whose sessions go on with all clients. The others, which take long to start or are on the SDK of one of these, have a few.
WITH_ALL = ["typescript-v1", "everything", "filesystem", "rmcp"]
FEW = ["typescript-v1", "python-mcp1", "rmcp"]
# Servers that ask for roots once a session is open.
ASKING_AT_ONCE = ["everything", "filesystem"]


@pytest.mark.each_value
@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("server", stdio.LONG)
async def test_a_call_that_is_cut_completes(server, client, on_stdio, key):
    """It runs once. In the same session tools are listed, and the server's question is answered."""
    kind = stdio.LONG[server]
    tool, arguments, done = kind.long(STEPS, INTERVAL_MS, key)
    async with Relay(on_stdio[server], Cut("event", 2)) as relay:
        async with Client(client, LEGACY, relay.url(), tool, arguments, then=True, timeout_ms=TIMEOUT_MS) as running:
            assert await running.outcome(0) == ("result", done), relay.report()
            assert_whole(relay, running.transcript, STEPS, done)
            assert relay.cuts == 1
            if not kind.foreign:
                stdio.assert_runs(key)
            await running.list_tools(1)
            if server in ASKING:
                running.begin("ask", {"kind": "elicitation", "key": f"{key}-ask"})
                assert await running.outcome(2) == ("result", "answered elicited"), relay.report()
                stdio.assert_runs(f"{key}-ask")
            said = await running.finish()
            asked = {"elicitation": int(server in ASKING), "roots": int(server in ASKING_AT_ONCE)}
            assert {what: said.asked.count(what) for what in asked} == asked


@pytest.mark.parametrize("server", stdio.SERVERS)
async def test_sessions_go_on(server, clients, start, key, tmp_path):
    """After the processes were killed, and after the proxy was, each session has a new process."""
    clients = clients if server in WITH_ALL else [client for client in clients if client in FEW]
    settings = {"STORE__KIND": "disk", "STORE__PATH": tmp_path / "store", "UPSTREAM__STARTS_PER_MINUTE": 6000}
    proxy = await asyncio.to_thread(stdio.Restarted, start, server, **settings)
    async with sessions_at(proxy.port, stdio.SERVERS[server], key, clients, timeout_ms=TIMEOUT_MS) as sessions:
        assert stdio.kill_children(proxy.pid) == len(sessions)
        await eventually(lambda: metric(proxy.admin, 'channel_ends_total{reason="lost"}') == len(sessions))
        for session in sessions.values():
            session.begin(key)
        await assert_go_on(sessions, 1, key)
        left = stdio.children(proxy.pid)
        assert len(left) == len(sessions)
        proxy.kill()
        await eventually(lambda: not any(map(stdio.is_running, left)))
        await asyncio.to_thread(proxy.begin)
        for session in sessions.values():
            session.begin(key)
        await assert_go_on(sessions, 2, key)
        if server in ASKING_AT_ONCE:
            for session in sessions.values():
                assert "roots" in session.client.transcript.asked, session.report()


@pytest.mark.parametrize("server", [name for name, kind in stdio.LONG.items() if not kind.foreign])
async def test_a_cancel_reaches_the_server(server, on_stdio, key):
    port = on_stdio[server]
    session = await open_session(port)
    answer = await ask(port, body=call(3, "long", steps=100, interval_ms=50, key=key), **session)
    await until_progress(answer, 1)
    cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 3}}
    assert (await ask(port, body=cancel, **session)).status == 202
    await eventually(lambda: stdio.counters(key)["cancelled"] == 1)
    answer.reset()
    assert (await ask(port, method="DELETE", **session)).status == 200


@pytest.mark.parametrize("client", ["typescript-v1", "typescript-v2", "rmcp"])
async def test_a_deadline_of_the_client_cancels_the_call(client, on_stdio, key):
    """The session goes on."""
    async with Relay(on_stdio["typescript-v1"]) as relay:
        silent, flags = {"interval_ms": 60_000, "key": key}, ("--deadline-ms", "500")
        async with Client(client, LEGACY, relay.url(), "silent", silent, then=True, flags=flags) as running:
            ending, _ = await running.outcome(0)
            assert ending == "error", relay.report()
            await eventually(lambda: stdio.counters(key)["cancelled"] == 1)
            running.begin("quick", {"key": f"{key}-quick"})
            assert await running.outcome(1) == ("result", "quick"), relay.report()


async def test_clients_that_are_alike_share_a_process(start, key):
    """Two clients of each of two kinds, at once. Each has its progress, questions and subscription, also at the process after a killed one."""
    settings = {"UPSTREAM__SHARED": "true", "UPSTREAM__STARTS_PER_MINUTE": 6000}
    proxy = await asyncio.to_thread(stdio.Restarted, start, "everything", **settings)
    tool, arguments, done = stdio.SERVERS["everything"].long(STEPS, INTERVAL_MS, key)
    async with AsyncExitStack() as running:

        async def open_one(name):
            relay = await running.enter_async_context(Relay(proxy.port))
            client = Client(name, LEGACY, relay.url(), tool, arguments, then=True, timeout_ms=TIMEOUT_MS)
            return await running.enter_async_context(client), relay

        sessions = [await open_one(name) for name in ["typescript-v1", "python-mcp1"] * 2]
        for client, relay in sessions:
            assert await client.outcome(0) == ("result", done), relay.report()
            assert_whole(relay, client.transcript, STEPS, done)
        assert len(stdio.children(proxy.pid)) == 2
        for n, (client, relay) in enumerate(sessions):
            client.begin("trigger-elicitation-request", {})
            assert (await client.outcome(1) or ("no", "end"))[0] == "result", relay.report()
            asked = [session.transcript.asked.count("elicitation") for session, _ in sessions]
            assert asked == [int(other <= n) for other in range(len(sessions))], relay.report()
        await together(*(client.subscribe(2, "demo://resource/dynamic/text/1") for client, _ in sessions))
        assert stdio.kill_children(proxy.pid) == 2
        await eventually(lambda: metric(proxy.admin, 'channel_ends_total{reason="lost"}') == 2)
        for client, _ in sessions:
            client.begin("echo", {"message": key})
        for client, relay in sessions:
            assert await client.outcome(3) == ("result", f"Echo: {key}"), relay.report()
        assert len(stdio.children(proxy.pid)) == 2
        await together(*(client.finish() for client, _ in sessions))
