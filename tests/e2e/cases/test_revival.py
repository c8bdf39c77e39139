"""A server that is restarted forgets its sessions: their clients go on in them, and open no others."""

import asyncio

import pytest

from harness import stack
from harness.checks import assert_runs
from harness.restarts import Restarted
from harness.sessions import assert_go_on, sessions_at
from harness.stack import CLIENTS, eventually, server_kind

pytestmark = pytest.mark.anyio

# Each refuses an unknown session in its own way, or keeps its sessions in its own.
SERVERS = [
    "typescript-v1",
    "typescript-v1-json",
    "typescript-v1-mastra",
    "typescript-v2-sessions",
    "everything",
    "python-mcp1",
    "python-mcp1-22",
    "python-mcp2",
    "fastmcp",
    "rmcp",
    "supergateway-3",
    "supergateway-4",
    "npm-mcp-proxy",
    "python-mcp-proxy",
    "playwright",
]

# The port of a process is back after two seconds.
REFUSED = 2.0

# The warning at a session that was opened again.
GONE = "the server was restarted: all that it kept for this session is gone"


@pytest.mark.parametrize("server", SERVERS)
async def test_between_two_calls(server, clients, start, key):
    restarted, proxy = await behind_a_proxy(start, server)
    async with sessions_at(proxy.found["port"], server, key, clients) as sessions:
        await restarted.restart()
        for session in sessions.values():
            session.begin(key)
        await assert_go_on(sessions, 1, key)


@pytest.mark.each_value("restart")
@pytest.mark.parametrize("server", SERVERS)
async def test_a_call_while_the_server_is_away(server, clients, start, key):
    restarted, proxy = await behind_a_proxy(start, server)
    async with sessions_at(proxy.found["port"], server, key, clients) as sessions:
        await restarted.end()
        for session in sessions.values():
            session.begin(key)
        await eventually(lambda: all(len(session.relay.calls) == 2 for session in sessions.values()))
        await asyncio.sleep(REFUSED)
        for name, session in sessions.items():
            assert len(session.client.transcript.outcomes) == 1, f"{name}: {session.report()}"
        await restarted.begin()
        await assert_go_on(sessions, 1, key)


@pytest.mark.each_value("restart")
@pytest.mark.parametrize("server", SERVERS)
async def test_a_call_that_runs_ends_with_an_error(server, clients, start, key):
    """It is never run again, and the next one goes on in the session."""
    restarted, proxy = await behind_a_proxy(start, server, BROWSER_SECS="5")
    async with sessions_at(proxy.found["port"], server, f"{key}-quick", clients) as sessions:
        kind = server_kind(server)
        tool, arguments, _ = kind.long(600, 100, key)
        for session in sessions.values():
            session.client.begin(tool, arguments)
        # A status of 502, of a call or of an answer, would end the client of Python's SDK 1.x, not the call alone.
        await eventually(lambda: all(session.statuses == [200, 200] for session in sessions.values()))
        if server == "playwright":
            await eventually(lambda: all(session.has_answered for session in sessions.values()))
        await restarted.end()
        for name, session in sessions.items():
            ending, message = await session.client.outcome(1) or ("no", "end")
            assert (ending, message != "timeout") == ("error", True), f"{name}: {session.report()}"
            assert server != "playwright" or not message.startswith("### Error"), f"{name}: {session.report()}"
        await restarted.begin()
        for session in sessions.values():
            session.begin(f"{key}-quick")
        await assert_go_on(sessions, 2, f"{key}-quick")
    if not kind.foreign:
        assert_runs(restarted.port, key, started=0, finished=0)


@pytest.mark.one_case
@pytest.mark.parametrize("client", CLIENTS)
async def test_a_server_of_one_session(client, start, key):
    """It takes one `initialize` in its life: none may be wasted."""
    server = "typescript-v1-single"
    restarted, proxy = await behind_a_proxy(start, server)
    async with sessions_at(proxy.found["port"], server, key, [client]) as sessions:
        await restarted.restart()
        sessions[client].begin(key)
        await assert_go_on(sessions, 1, key)


@pytest.mark.parametrize("client", ["typescript-v1", "typescript-v2"])
async def test_a_living_session_whose_get_has_no_route_is_kept(client, start, key):
    """As of `app.post` alone: the 404 to the client's GET is no refusal of the session, and no call runs twice."""
    server = "typescript-v1-post-alone"
    restarted, proxy = await behind_a_proxy(start, server)
    async with sessions_at(proxy.found["port"], server, key, [client]) as sessions:
        session = sessions[client]
        got = [exchange for exchange in session.relay.exchanges if exchange.kind == "standalone"]
        await eventually(lambda: all(exchange.status == 404 for exchange in got))
        for n in (1, 2):
            session.begin(key)
            await assert_go_on(sessions, n, key)
        lives, revived = (
            stack.metric(proxy.found["admin"], f'session_revivals_total{{outcome="{outcome}"}}')
            for outcome in ("lives", "revived")
        )
        assert (lives, revived) == (1, 0), session.report()
        assert_runs(restarted.port, key, started=3, finished=3)
        # A server that was restarted has forgotten the session.
        await restarted.restart()
        session.begin(key)
        await assert_go_on(sessions, 3, key)
    assert_runs(restarted.port, key, started=1, finished=1)


async def test_the_server_reaches_the_client_as_before(start, key):
    """Its questions, numbered from 0 in each session, and its messages outside of calls arrive; a warning says what is gone."""
    restarted, proxy = await behind_a_proxy(start, "typescript-v1")
    async with sessions_at(proxy.found["port"], "typescript-v1", key) as sessions:
        await eventually(lambda: all(session.listens for session in sessions.values()))
        for n in (1, 2):
            await restarted.restart()
            for session in sessions.values():
                session.client.begin("ask", {"kind": "sampling"})
            for session in sessions.values():
                assert await session.client.outcome(n) == ("result", "answered sampled"), session.report()
        for session in sessions.values():
            session.client.begin("announce", {"steps": 3, "interval_ms": 50})
        for session in sessions.values():
            said = session.client.transcript
            await eventually(lambda said=said: said.logged == [GONE, GONE, 1, 2, 3])
            assert said.asked == ["sampling", "sampling"]
            assert session.handshakes == 1, session.report()


async def test_lists_that_are_the_same_are_not_announced(start, key):
    """The server declares `listChanged`. Its clients have read its tools, which a restart does not change; the warning comes alone."""
    restarted, proxy = await behind_a_proxy(start, "typescript-v1")
    async with sessions_at(proxy.found["port"], "typescript-v1", key) as sessions:
        await eventually(lambda: all(session.listens for session in sessions.values()))
        for session in sessions.values():
            await session.client.list_tools(1)
        await restarted.restart()
        for session in sessions.values():
            session.begin(key)
        await assert_go_on(sessions, 2, key)
        for session in sessions.values():
            said = session.client.transcript
            await eventually(lambda said=said: said.logged == [GONE])
            assert said.changed == [], session.report()


async def test_the_level_of_log_messages_is_set_again(start, key):
    restarted, proxy = await behind_a_proxy(start, "typescript-v1")
    async with sessions_at(proxy.found["port"], "typescript-v1", key) as sessions:
        await eventually(lambda: all(session.listens for session in sessions.values()))
        for session in sessions.values():
            await session.client.set_level(1, "error")
        await restarted.restart()
        # Without the level each client would get the messages of the first call as well.
        for level in ("info", "error"):
            for session in sessions.values():
                session.client.begin("announce", {"steps": 2, "interval_ms": 20, "level": level})
        for session in sessions.values():
            said = session.client.transcript
            assert await session.client.outcome(3) == ("result", "announced 2"), session.report()
            await eventually(lambda said=said: [data for data in said.logged if data != GONE] == [1, 2])
            assert session.handshakes == 1, session.report()


async def test_the_client_is_subscribed_again(start, key):
    """The reference server tells of updates of a resource only to those sessions that are subscribed to it."""
    uri = "demo://resource/dynamic/text/1"
    restarted, proxy = await behind_a_proxy(start, "everything")
    async with sessions_at(proxy.found["port"], "everything", key) as sessions:
        await eventually(lambda: all(session.listens for session in sessions.values()))
        for session in sessions.values():
            await session.client.subscribe(1, uri)
        await restarted.restart()
        for session in sessions.values():
            session.client.begin("toggle-subscriber-updates", {})
        for session in sessions.values():
            said = session.client.transcript
            await eventually(lambda said=said: said.updated[:1] == [uri])
            assert session.handshakes == 1, session.report()


async def test_a_session_that_its_server_ended_for_idleness(start, key):
    restarted, proxy = await behind_a_proxy(start, "rmcp", KEEP_ALIVE_SECS="1")
    async with sessions_at(proxy.found["port"], "rmcp", key) as sessions:
        await asyncio.sleep(3)
        for session in sessions.values():
            session.begin(key)
        await assert_go_on(sessions, 1, key)
    assert_runs(restarted.port, key, started=2 * len(CLIENTS), finished=2 * len(CLIENTS))
    revived = stack.metric(proxy.found["admin"], 'session_revivals_total{outcome="revived"}')
    assert revived >= len(CLIENTS)


@pytest.mark.each_value("restart")
@pytest.mark.parametrize("server", SERVERS)
async def test_straight_to_the_server_the_session_is_lost(server, clients, start, key):
    """No client gets its result; rmcp does where it understands the refusal, and opens another session for it."""
    restarted = await asyncio.to_thread(Restarted, start, server)
    await assert_lost(restarted, restarted.port, server, key, clients)


async def test_with_revival_switched_off_the_session_is_lost(start, key):
    restarted, proxy = await behind_a_proxy(start, "typescript-v1", SESSIONS__REVIVE="never")
    await assert_lost(restarted, proxy.found["port"], "typescript-v1", key, CLIENTS)


async def assert_lost(restarted, port, server, key, clients):
    async with sessions_at(port, server, key, clients, timeout_ms=15_000) as sessions:
        await restarted.restart()
        for session in sessions.values():
            session.begin(key)
        kept = [
            name
            for name, session in sessions.items()
            if await session.ended_well(1, key) and session.handshakes == 1
        ]
    assert kept == []


async def behind_a_proxy(start, server, **settings):
    """The server, and a proxy in front of it. Settings with two underscores are the proxy's, the others the server's."""
    of_proxy = {name: value for name, value in settings.items() if "__" in name}
    of_server = {name: value for name, value in settings.items() if "__" not in name}
    restarted = await asyncio.to_thread(Restarted, start, server, **of_server)
    proxy = await asyncio.to_thread(start, stack.start_proxy, restarted.port, **of_proxy)
    return restarted, proxy
