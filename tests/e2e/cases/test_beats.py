"""Deadlines of clients in silent calls: the proxy writes progress, which some clients extend their deadline by."""

import asyncio

import pytest

from harness import stack
from harness.checks import assert_runs
from harness.relay import Cut, Relay
from harness.stack import CLIENTS, LEGACY, MODERN, SERVERS, run_client

pytestmark = pytest.mark.anyio

SERVER = "typescript-v2"
# A call without a message, and a deadline that it exceeds even on a busy machine. Progress comes far more often.
SILENCE_MS, DEADLINE_MS = 8_000, 4_000
# Progress needs a response that has begun.
BEATS = {"DELIVERY__PROGRESS_AFTER_SECS": 1, "DELIVERY__COMMIT_AFTER_MS": 500}

PAIRS = [(client, era) for client, kind in CLIENTS.items() for era in kind.eras]
# The Python SDKs limit the whole call.
EXTENDS = {client: not kind.is_python for client, kind in CLIENTS.items()}


def long(key, silence_ms=SILENCE_MS):
    return SERVERS[SERVER].long(1, silence_ms, key)


async def call_through(start, servers, client, era, key, settings, *flags):
    """A silent call through a proxy of its own; returns the transcript, and the number of notifications that the proxy wrote."""
    proxy = await asyncio.to_thread(start, stack.start_proxy, servers[SERVER], **settings)
    tool, arguments, _ = long(key)
    url = f"http://127.0.0.1:{proxy.found['port']}/mcp"
    said = await run_client(client, era, url, tool, arguments, flags=flags)
    return said, stack.metric(proxy.found["admin"], "progress_beats_total")


@pytest.mark.each_value
@pytest.mark.parametrize("client, era", PAIRS)
async def test_a_deadline_shorter_than_the_silence(client, era, servers, start, key):
    said, beats = await call_through(start, servers, client, era, key, BEATS, "--deadline-ms", str(DEADLINE_MS))
    if EXTENDS[client]:
        assert said.result == "done 1", (said.error, said.noise)
        assert beats >= SILENCE_MS / 1000 - 2
        assert_runs(servers[SERVER], key)
    else:
        assert said.ending == "error", (said.lines, said.noise)
    assert beats >= 1


@pytest.mark.one_case
@pytest.mark.parametrize("client, era", PAIRS)
async def test_without_progress_the_call_is_lost(client, era, servers, start, key):
    off = {"DELIVERY__PROGRESS_AFTER_SECS": 0}
    said, beats = await call_through(start, servers, client, era, key, off, "--deadline-ms", str(DEADLINE_MS))
    assert said.ending == "error" and beats == 0, (said.lines, said.noise)


@pytest.mark.each_value
@pytest.mark.parametrize("client, era", PAIRS)
async def test_a_client_with_its_default_deadline_is_unharmed_and_resumes(client, era, servers, start, key):
    proxy = await asyncio.to_thread(start, stack.start_proxy, servers[SERVER], **BEATS)
    tool, arguments, done = long(key)
    # Behind two notifications of the proxy, which have no ids: the client has that of the empty first event.
    async with Relay(proxy.found["port"], Cut("event", 2)) as relay:
        said = await run_client(client, era, relay.url(), tool, arguments)
    assert said.result == done, (said.error, said.noise)
    assert said.progress[-1] == 1, "that of the server"
    assert relay.cuts == 1
    # The proxy ends the first resumed response of a client of Python, which counts cuts.
    *ended, resumed = [exchange for exchange in relay.exchanges if exchange.is_resume]
    assert len(ended) == stack.CLIENTS[client].is_python and not any(exchange.events[1:-1] for exchange in ended)
    of_proxy = [event for event in resumed.events if event.id is None]
    assert of_proxy and len(resumed.events) == len(of_proxy) + 2, resumed.events
    assert_runs(servers[SERVER], key)


async def call_with_total(start, server, client, era, key, name):
    """A call without any progress of the server, whose client checks a limit for the whole call when progress comes."""
    proxy = await asyncio.to_thread(start, stack.start_proxy, server, **BEATS)
    flags = ("--deadline-ms", "20000", "--total-ms", str(DEADLINE_MS), "--name", name)
    url = f"http://127.0.0.1:{proxy.found['port']}/mcp"
    said = await run_client(client, era, url, "silent", {"interval_ms": SILENCE_MS, "key": key}, flags=flags)
    return said, stack.metric(proxy.found["admin"], "progress_beats_total")


# A client without a session is known by its name at 2026-07-28 alone.
TOTALS = [
    ("typescript-v1", LEGACY, "typescript-v1"),
    ("typescript-v1", LEGACY, "typescript-v2"),
    (SERVER, MODERN, "typescript-v2"),
]


@pytest.mark.parametrize("server, era, client", TOTALS)
async def test_a_client_that_progress_harms_is_excepted(server, era, client, servers, start, key):
    said, beats = await call_with_total(start, servers[server], client, era, key, "inspector-client")
    assert said.result == "done" and beats == 0, (said.lines, said.noise)


@pytest.mark.parametrize("server, era, client", TOTALS)
async def test_such_a_client_that_is_not_excepted_fails(server, era, client, servers, start, key):
    said, beats = await call_with_total(start, servers[server], client, era, key, "another")
    assert said.ending == "error" and beats > 0, (said.lines, said.noise)


@pytest.mark.parametrize("client", [client for client, extends in EXTENDS.items() if extends])
async def test_a_server_that_hangs_times_out(client, servers, start, key):
    settings = {**BEATS, "DELIVERY__PROGRESS_MAX_SECS": 3}
    proxy = await asyncio.to_thread(start, stack.start_proxy, servers[SERVER], **settings)
    tool, arguments, _ = long(key, 60_000)
    url = f"http://127.0.0.1:{proxy.found['port']}/mcp"
    said = await run_client(client, LEGACY, url, tool, arguments, flags=("--deadline-ms", str(DEADLINE_MS)))
    assert said.ending == "error", (said.lines, said.noise)
    assert 1 <= stack.metric(proxy.found["admin"], "progress_beats_total") <= 3
