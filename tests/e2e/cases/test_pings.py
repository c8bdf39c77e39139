"""Servers that end sessions of which they hear nothing: their calls go on while the client is away, or silent."""

import asyncio

import pytest

from harness import raw, stack
from harness.checks import assert_runs
from harness.stack import CLIENTS, LEGACY, eventually, run_client

pytestmark = pytest.mark.anyio

# Playwright's server sends a ping three seconds after the last answer, and ends the session five seconds after one without.
LOST_BY = 15.0
# Pings in which a client is away for longer than that.
PINGS = 6

# Time without a message after which the server on rmcp ends a session here, and a call that is silent for longer.
QUIET_SECS = 3
SILENT = {"steps": 1, "interval_ms": 9_000}


async def leave(port):
    """Begins a call and the session's own stream, and leaves both; returns the session and the ID of the call's last event, if any."""
    session = await raw.open_session(port)
    own = await raw.ask(port, method="GET", **session)
    assert own.status == 200
    called = await raw.ask(port, body=raw.call(1, "browser_tabs", action="list"), **session)
    assert called.status == 200
    try:
        last = (await asyncio.wait_for(called.event(), 2)).id
    except TimeoutError:
        last = None
    called.reset()
    own.reset()
    return session, last


async def test_a_client_that_is_away(start):
    server = await asyncio.to_thread(start, stack.start_idle_playwright, PAGE_SECS="30")
    proxy = await asyncio.to_thread(start, stack.start_proxy, server.found["port"])
    port = proxy.found["port"]
    session, last = await leave(port)
    await eventually(lambda: stack.metric(proxy.found["admin"], 'pings_answered_total{outcome="accepted"}') >= PINGS)
    back = await raw.ask(port, method="GET", last_event_id=last, **session)
    [result] = await back.messages()
    assert result["id"] == 1 and result["result"]["content"][0]["text"].startswith("### Error"), result
    revived = stack.metric(proxy.found["admin"], 'session_revivals_total{outcome="revived"}')
    assert revived == 0


async def test_without_answers_the_call_is_lost(start):
    server = await asyncio.to_thread(start, stack.start_idle_playwright, PAGE_SECS="70")
    proxy = await asyncio.to_thread(start, stack.start_proxy, server.found["port"], UPSTREAM__ANSWER_PINGS="never")
    session, last = await leave(proxy.found["port"])
    await asyncio.sleep(LOST_BY)
    back = await raw.ask(proxy.found["port"], method="GET", last_event_id=last, **session)
    [error] = await back.messages()
    assert error["error"]["data"]["fault"] == "upstream", error


async def test_straight_to_the_server_the_session_is_gone(start):
    server = await asyncio.to_thread(start, stack.start_idle_playwright, PAGE_SECS="70")
    session, _ = await leave(server.found["port"])
    await asyncio.sleep(LOST_BY)
    asked = await raw.ask(server.found["port"], body={"jsonrpc": "2.0", "id": 2, "method": "tools/list"}, **session)
    assert asked.status == 404


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_silent_call(client, start, key):
    server = await asyncio.to_thread(start, stack.start_server, "rmcp", KEEP_ALIVE_SECS=str(QUIET_SECS))
    proxy = await asyncio.to_thread(start, stack.start_proxy, server.found["port"], UPSTREAM__KEEPALIVE_SECS=1)
    url = f"http://127.0.0.1:{proxy.found['port']}/mcp"
    said = await run_client(client, LEGACY, url, "long", {**SILENT, "key": key})
    assert said.result == "done 1", (said.error, said.noise)
    assert_runs(server.found["port"], key)
    assert stack.metric(proxy.found["admin"], 'keep_alive_pings_total{outcome="accepted"}') >= 3


@pytest.mark.one_case
@pytest.mark.parametrize("client", CLIENTS)
async def test_without_pings_the_silent_call_is_lost(client, start, key):
    server = await asyncio.to_thread(start, stack.start_server, "rmcp", KEEP_ALIVE_SECS=str(QUIET_SECS))
    proxy = await asyncio.to_thread(start, stack.start_proxy, server.found["port"], UPSTREAM__KEEPALIVE_SECS=0)
    url = f"http://127.0.0.1:{proxy.found['port']}/mcp"
    said = await run_client(client, LEGACY, url, "long", {**SILENT, "key": key}, timeout_ms=15_000)
    assert said.result is None
