"""Connections that the proxy closes on purpose: poll mode and a longest connection. Every client resumes for the rest."""

import pytest

from harness import stack
from harness.checks import assert_runs, assert_whole
from harness.relay import Relay
from harness.stack import CLIENTS, LEGACY, MODERN, SERVERS, run_client

pytestmark = pytest.mark.anyio

MODES = {
    "poll": {"DELIVERY__MODE": "poll", "DELIVERY__POLL_RETRY_MS": 400},
    "max-connection": {"DELIVERY__MAX_CONNECTION_SECS": 1},
}

WHO = [(name, era) for name, kind in CLIENTS.items() for era in kind.eras]


@pytest.mark.each_value
@pytest.mark.parametrize("client, era", WHO)
@pytest.mark.parametrize("mode", MODES)
async def test_call_completes(mode, client, era, servers, start, key):
    server = {LEGACY: "typescript-v1", MODERN: "typescript-v2"}[era]
    proxy = start(stack.start_proxy, servers[server], **MODES[mode])
    tool, arguments, done = SERVERS[server].long(12, 250, key)
    async with Relay(proxy.found["port"]) as relay:
        said = await run_client(client, era, relay.url(), tool, arguments)
        assert_whole(relay, said, 12, done)
        assert_runs(servers[server], key)
        # Only clients that negotiated the revision with polling are closed on.
        if era == LEGACY:
            assert len(relay.resumes) >= 2
