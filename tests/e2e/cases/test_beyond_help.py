"""Cuts that no SDK resumes by its own rules: through the proxy they end no worse than straight to the server.

| cut | reason that a client cannot resume |
|---|---|
| between the request and the first byte of the response | it has no id, and does not know that there is a stream |
| after the head alone | it knows that there is a stream, but has no id of it |

The second cannot happen between two events: the proxy writes the first id with the head. It needs a cut inside that one write.
The clients then act alike with and without the proxy: most report an error at once, some wait for their own time limit. The
tool runs once either way.
"""

import pytest

from harness import stack
from harness.relay import Cut, Relay
from harness.stack import CLIENTS, LEGACY, MODERN, SERVERS, counters, eventually, metric, run_client, together

pytestmark = pytest.mark.anyio

RANK = {"result": 0, "error": 1, "hang": 2}


@pytest.mark.parametrize("era", [LEGACY, MODERN])
@pytest.mark.parametrize("at", ["request", "head"])
async def test_nothing_is_worse_than_direct(at, era, servers, proxies, key):
    server = {LEGACY: "typescript-v1", MODERN: "typescript-v2"}[era]

    async def one(client, ports, way):
        runs = f"{key}-{client}-{way}"
        tool, arguments, _ = SERVERS[server].long(3, 100, runs)
        async with Relay(ports[server], Cut(at)) as relay:
            said = await run_client(client, era, relay.url(), tool, arguments, timeout_ms=8000)
            assert relay.cuts == 1, f"{client} {way}: {relay.report()}\n{said}"
        if way == "proxied":
            # A client that gives up at once may be quicker than the tool.
            await eventually(lambda: counters(servers[server], runs)["started"] > 0)
        return said.ending, counters(servers[server], runs)["started"]

    async def pair(client):
        direct, proxied = await together(one(client, servers, "direct"), one(client, proxies, "proxied"))
        assert RANK[proxied[0]] <= RANK[direct[0]], (client, direct, proxied)
        assert proxied[1] == 1, (client, direct, proxied)

    await together(*(pair(client) for client, kind in CLIENTS.items() if era in kind.eras))


async def test_it_shows_in_log_and_metrics(servers, start, key):
    """An operator can count the clients that left without an id to resume with."""
    server = "typescript-v1-json"
    proxy = start(stack.start_proxy, servers[server])
    tool, arguments, _ = SERVERS[server].long(1, 400, key)
    async with Relay(proxy.found["port"], Cut("request")) as relay:
        said = await run_client("rmcp", LEGACY, relay.url(), tool, arguments, timeout_ms=8000)
        assert (said.ending, relay.cuts) == ("error", 1), relay.report()
    await eventually(lambda: metric(proxy.found["admin"], 'disconnects_total{can_resume="no"}') == 1)
    await eventually(lambda: [line for line in proxy.lines if "client disconnected" in line])
