"""Responses begin with an event that no client reports as an error."""

import pytest

from harness.checks import assert_runs, assert_whole
from harness.relay import Relay
from harness.stack import LEGACY, SERVERS, run_client

pytestmark = pytest.mark.anyio

# The client, and the revision that its SDK asks for.
STRICT = {"typescript-1.23-strict": "2025-06-18", "typescript-v1-strict": "2025-11-25"}
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
