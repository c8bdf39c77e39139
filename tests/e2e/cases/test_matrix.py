"""A stock client's long call through the proxy to a stock server completes after a cut at any place."""

import pytest

from harness.checks import assert_runs, assert_whole
from harness.relay import Cut, Relay
from harness.stack import CLIENTS, MODERN, PROTOCOL, SERVERS, run_client

pytestmark = pytest.mark.anyio

STEPS, INTERVAL_MS = 5, 150

CUTS = {
    "uncut": None,
    "after-event": Cut("event", 2),
    "before-event": Cut("event", 0),
    "in-the-response": Cut("final"),
    "after-event-fin": Cut("event", 1, how="fin"),
    "repeatedly": Cut("event", 1, times=4, resumes=True),
}


def cases():
    """Every server with every client in every era that both speak, cut in every way that the client can survive."""
    for server, server_kind in SERVERS.items():
        if server == "typescript-v1-json":
            continue
        for client, client_kind in CLIENTS.items():
            for era in client_kind.eras:
                if era not in server_kind.eras:
                    continue
                for name, cut in CUTS.items():
                    if cut is None or cut.times == 1 or client_kind.many_cuts:
                        yield pytest.param(server, client, era, cut, id=f"{server}-{client}-{era}-{name}")


@pytest.mark.parametrize("server, client, era, cut", list(cases()))
async def test_call_completes(server, client, era, cut, servers, proxies, key):
    kind = SERVERS[server]
    tool, arguments, done = kind.long(STEPS, INTERVAL_MS, key)
    async with Relay(proxies[server], cut) as relay:
        said = await run_client(client, era, relay.url(), tool, arguments)
        assert said.lines[0][1] == {"event": "connected", "protocol": PROTOCOL[era]}, said.noise
        assert_whole(relay, said, STEPS, done)
        assert relay.cuts == (cut.times if cut else 0)
        assert len(relay.calls) == 1
        assert bool(relay.resumes) == bool(cut)
        if not kind.foreign:
            assert_runs(servers[server], key)


SILENT = [(client, era) for client, kind in CLIENTS.items() for era in kind.eras if era != MODERN]


@pytest.mark.parametrize("client, era", SILENT)
async def test_a_silent_call_completes(client, era, servers, proxies, key):
    """The server sends nothing, not even a head, until it is done: the client can resume before the server's first byte."""
    tool, arguments, done = SERVERS["typescript-v1-json"].long(1, 1500, key)
    async with Relay(proxies["typescript-v1-json"], Cut("silence", 900)) as relay:
        said = await run_client(client, era, relay.url(), tool, arguments)
        # A JSON response has no room for progress notifications.
        assert_whole(relay, said, 0, done)
        assert relay.cuts == 1
        assert_runs(servers["typescript-v1-json"], key)


@pytest.mark.parametrize("client, era", SILENT)
async def test_a_silent_call_survives_five_cuts(client, era, servers, proxies, key):
    """More than any client's own attempts, though none brings an event."""
    tool, arguments, done = SERVERS["typescript-v1-json"].long(1, 12_000, key)
    async with Relay(proxies["typescript-v1-json"], Cut("silence", 700, times=5, resumes=True)) as relay:
        said = await run_client(client, era, relay.url(), tool, arguments)
        assert_whole(relay, said, 0, done)
        assert relay.cuts == 5
        assert_runs(servers["typescript-v1-json"], key)
