"""Responses begin with an event that no client reports as an error."""

import pytest

from harness.checks import assert_runs, assert_whole
from harness.relay import Cut, Relay
from harness.stack import LEGACY, SERVERS, run_client

pytestmark = pytest.mark.anyio

# The client, and the revision that its SDK asks for.
STRICT = {
    "typescript-1.23-strict": "2025-06-18",
    "typescript-v1-strict": "2025-11-25",
    "python-1.9-strict": "2025-03-26",
    "python-1.22-strict": "2025-06-18",
    "python-mcp1-strict": "2025-11-25",
    "python-mcp2-strict": "2025-11-25",
    "go-sdk-1.1": "2025-06-18",
    "go-sdk-1.3": "2025-06-18",
    "go-scanner": "2025-06-18",
}
# Python's SDK resumes a POST since 1.23. Clients in Go get no event ID before the first message.
RESUMES_SILENT = ["typescript-1.23-strict", "typescript-v1-strict", "python-mcp1-strict", "python-mcp2-strict"]
RESUMES = [*RESUMES_SILENT, "go-sdk-1.1", "go-sdk-1.3", "go-scanner"]
OWN = ["typescript-v1", "typescript-v1-stateless", "python-mcp1", "python-mcp2", "fastmcp", "typescript-v2"]


@pytest.mark.each_value
@pytest.mark.parametrize("server", OWN)
@pytest.mark.parametrize("client, revision", STRICT.items())
async def test_no_error_is_reported(client, revision, server, servers, proxies, key):
    """The session is opened, its GET stream runs, a call with progress completes, and a list follows."""
    tool, arguments, done = SERVERS[server].long(3, 100, key)
    async with Relay(proxies[server]) as relay:
        said = await run_client(client, LEGACY, relay.url(), tool, arguments)
        assert said.lines[0][1] == {"event": "connected", "protocol": revision}, said.noise
        assert_whole(relay, said, 3, done)
        assert_runs(servers[server], key)


@pytest.mark.parametrize("client", STRICT)
async def test_no_error_is_reported_of_a_silent_call(client, servers, proxies, key):
    """The first event of the response is the proxy's own, and nothing follows until the result."""
    server = "typescript-v1-json"
    tool, arguments, done = SERVERS[server].long(1, 1500, key)
    async with Relay(proxies[server]) as relay:
        said = await run_client(client, LEGACY, relay.url(), tool, arguments)
        assert_whole(relay, said, 0, done)
        assert_runs(servers[server], key)


@pytest.mark.each_value
@pytest.mark.parametrize("server", ["typescript-v1", "python-mcp1", "typescript-v2"])
@pytest.mark.parametrize("client", RESUMES)
async def test_no_error_is_reported_of_a_call_that_is_cut(client, server, servers, proxies, key):
    """The call is resumed behind its first message."""
    tool, arguments, done = SERVERS[server].long(3, 400, key)
    async with Relay(proxies[server], Cut("event", 1)) as relay:
        said = await run_client(client, LEGACY, relay.url(), tool, arguments)
        assert_whole(relay, said, 3, done)
        assert relay.cuts == 1, relay.report()
        assert_runs(servers[server], key)


@pytest.mark.parametrize("client", RESUMES_SILENT)
async def test_no_error_is_reported_of_a_silent_call_that_is_cut(client, servers, proxies, key):
    """The call is resumed behind the proxy's own event, the only one that the client has."""
    server = "typescript-v1-json"
    tool, arguments, done = SERVERS[server].long(1, 3000, key)
    async with Relay(proxies[server], Cut("silence", 1500)) as relay:
        said = await run_client(client, LEGACY, relay.url(), tool, arguments)
        assert_whole(relay, said, 0, done)
        assert relay.cuts == 1, relay.report()
        assert_runs(servers[server], key)
