"""Servers with sessions of their own behind a haproxy that knows a client by its cookie.

MCP clients keep no cookies: the proxy keeps them.
"""

import asyncio

import pytest

from harness import fronts, stack
from harness.checks import assert_ran_once
from harness.raw import ask, open_session
from harness.relay import Relay
from harness.replicas import Replica
from harness.restarts import Restarted
from harness.sessions import assert_go_on, sessions_at
from harness.stack import counters, together

pytestmark = pytest.mark.anyio

SERVER = "typescript-v1"


class Sticky:
    """Three servers, haproxy, and a proxy with a store that outlives it."""

    def __init__(self, start, folder):
        self.servers = [Restarted(start, SERVER) for _ in range(3)]
        self.balancer = start(fronts.start_sticky, folder, [server.port for server in self.servers]).found["port"]
        settings = {"UPSTREAM__SESSION_COOKIES": "SERVER", "STORE__KIND": "disk", "STORE__PATH": folder / "store"}
        self.proxy = Replica(start, self.balancer, **settings)

    @property
    def ports(self):
        return [server.port for server in self.servers]

    def opened(self):
        """The sessions that each server has opened since its start."""
        return [counters(port, "sessions")["started"] for port in self.ports]


@pytest.fixture
def sticky(start, tmp_path):
    return lambda: asyncio.to_thread(Sticky, start, tmp_path)


async def call_three_times(sessions, begin, key):
    """Calls `begin` to `begin + 2` of each session."""
    for n in range(begin, begin + 3):
        for name, session in sessions.items():
            session.begin(f"{key}-{name}-{n}")
        await assert_go_on(sessions, n, key)


async def test_each_client_has_one_session(sticky, clients, key):
    """Also after a restart of the servers, which forget their sessions."""
    stage = await sticky()
    async with sessions_at(stage.proxy.port, SERVER, key, clients) as sessions:
        await call_three_times(sessions, 1, key)
        assert sum(stage.opened()) == len(sessions), stage.opened()
        await together(*(server.restart() for server in stage.servers))
        await call_three_times(sessions, 4, key)
        assert sum(stage.opened()) == len(sessions), stage.opened()
        for name in sessions:
            assert_ran_once(stage.ports, f"{key}-{name}-6")


async def test_sessions_continue_after_a_restart_of_the_proxy(sticky, clients, key):
    """The store has the cookies, so each session keeps its server."""
    stage = await sticky()
    async with sessions_at(stage.proxy.port, SERVER, key, clients) as sessions:
        await call_three_times(sessions, 1, key)
        stage.proxy.kill()
        await asyncio.to_thread(stage.proxy.begin)
        await call_three_times(sessions, 4, key)
        assert sum(stage.opened()) == len(sessions), stage.opened()


@pytest.mark.parametrize("client", ["typescript-v1"])
async def test_straight_to_the_balancer_the_session_is_lost(client, sticky, key):
    """The contrast: the requests of one session reach all servers in turn."""
    stage = await sticky()
    async with Relay(stage.balancer) as relay:
        said = await stack.run_client(client, stack.LEGACY, relay.url(), "quick", {"key": key})
        assert said.result is None, relay.report()
        assert 404 in [exchange.status for exchange in relay.exchanges], relay.report()


async def test_cookies_do_not_reach_clients(sticky):
    stage = await sticky()
    session = await open_session(stage.proxy.port)
    answer = await ask(stage.proxy.port, body={"jsonrpc": "2.0", "id": 1, "method": "tools/list"}, **session)
    assert (answer.status, answer.headers.get("set-cookie")) == (200, None)
    await answer.body()
    # haproxy sets its cookie in the response to a request without it.
    straight = await ask(stage.balancer, body={"jsonrpc": "2.0", "id": 1, "method": "ping"})
    assert straight.headers["set-cookie"].startswith("SERVER=")
    await straight.body()
