"""The contrast: the same calls, cut the same way, straight to the servers."""

import pytest

from harness.relay import Cut, Relay
from harness.stack import CLIENTS, LEGACY, MODERN, PROTOCOL, SERVERS, run_client, together

pytestmark = pytest.mark.anyio

# A client that cannot resume hangs, up to 60 s or for ever: this is the time of observation.
LIMIT_MS = 8_000

WHO = [(name, era) for name, kind in CLIENTS.items() for era in kind.eras]


@pytest.mark.parametrize("era", [LEGACY, MODERN])
async def test_uncut_calls_complete(era, servers, key):
    """Shows that the losses below are caused by the cut: uncut, every client completes."""
    server = {LEGACY: "typescript-v1", MODERN: "typescript-v2"}[era]

    async def one(client):
        async with Relay(servers[server]) as relay:
            tool, arguments, done = SERVERS[server].long(3, 50, key)
            said = await run_client(client, era, relay.url(), tool, arguments)
            assert (client, said.progress, said.result) == (client, [1, 2, 3], done)
            assert said.lines[0][1] == {"event": "connected", "protocol": PROTOCOL[era]}

    await together(*(one(name) for name, kind in CLIENTS.items() if era in kind.eras))


async def cut_call(client, era, server, port, cut, key):
    async with Relay(port, cut) as relay:
        # Long enough for a client that resumes at once to find the call running.
        tool, arguments, _ = SERVERS[server].long(4, 500, key)
        said = await run_client(client, era, relay.url(), tool, arguments, timeout_ms=LIMIT_MS)
        assert relay.cuts == 1, f"{client}: {relay.report()}\n{said}"
        return said


@pytest.mark.parametrize(
    "cut",
    [Cut("event", 2), Cut("event", 0), Cut("final"), Cut("event", 2, how="fin")],
    ids=["after-event", "before-event", "in-the-response", "after-event-fin"],
)
async def test_a_cut_call_is_lost(cut, servers, key):
    """No client gets the result of a call that was cut at any place."""

    async def one(client, era):
        server = {LEGACY: "typescript-v1", MODERN: "typescript-v2"}[era]
        return client, era, (await cut_call(client, era, server, servers[server], cut, key)).result

    outcomes = await together(*(one(client, era) for client, era in WHO))
    assert [outcome for outcome in outcomes if outcome[2] is not None] == []


@pytest.mark.parametrize("server", SERVERS)
async def test_no_server_can_resume(server, servers, key):
    """rmcp shows it for each server, because it resumes at once, while the call is still running.

    The reference server numbers its events, so a client that resumes after the call has ended gets the rest; a client that
    resumes earlier gets no further events.
    """
    cut = Cut("silence", 50) if server == "typescript-v1-json" else Cut("event", 2)
    said = await cut_call("rmcp", LEGACY, server, servers[server], cut, key)
    assert said.result is None
