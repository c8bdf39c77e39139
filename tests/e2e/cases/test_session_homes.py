"""Pods, each a sidecar and a server that keeps sessions, behind a balancer: the sessions of a pod that is gone go on at another."""

import asyncio
from dataclasses import dataclass

import pytest

from harness import stack
from harness.balancer import BalancerProcess
from harness.raw import ask
from harness.replicas import Replica
from harness.restarts import Restarted
from harness.sessions import assert_go_on, sessions_at
from harness.stack import CLIENTS, START_LIMIT, eventually, together

pytestmark = pytest.mark.anyio

# Each refuses an unknown session in its own way.
SERVERS = ["typescript-v1", "everything", "python-mcp1", "python-mcp2", "fastmcp", "rmcp"]

SIDECAR = {"REPLICA__LEASE_SECS": 2, "REPLICA__WRAP_SESSIONS": "true", "STORE__KIND": "redis"}
BALANCER = {"BALANCE__HEALTH_MS": 250, "BALANCE__HEALTH_TIMEOUT_MS": 1000, "BALANCE__SLOW_START_SECS": 0}


@dataclass
class Pod:
    """A sidecar and its server, which live and die together."""

    server: Restarted
    sidecar: Replica
    # The prefix of its sessions' names.
    owner: str

    async def kill(self):
        self.sidecar.kill()
        await self.server.end()

    async def begin(self):
        await self.server.begin()
        await asyncio.to_thread(self.sidecar.begin)


@pytest.fixture
def pods_of(start, redis, key):
    """Starts three pods with servers of a kind, and a balancer in front of them."""

    async def run(kind):
        async def pod(name):
            server = await asyncio.to_thread(Restarted, start, kind)
            settings = SIDECAR | {"STORE__URL": redis, "STORE__PREFIX": key, "REPLICA__NAME": name}
            sidecar = await asyncio.to_thread(Replica, start, server.port, **settings)
            report = await (await ask(sidecar.port, method="GET", path="/.well-known/mcp-resume")).json()
            return Pod(server, sidecar, report["owner"])

        pods = await together(*(pod(name) for name in ("first", "second", "third")))
        urls = [f"http://127.0.0.1:{pod.sidecar.port}" for pod in pods]
        balancer = await asyncio.to_thread(BalancerProcess, start, urls, **BALANCER)
        await together(*(balancer.knows(pod.sidecar.port, "ready") for pod in pods))
        return pods, balancer

    return run


@pytest.mark.one_case
@pytest.mark.parametrize("server", SERVERS)
async def test_a_pod_that_is_gone(server, pods_of, key):
    """Two pods go, one after the other, and both come back: each client goes on in the session that it opened."""
    pods, balancer = await pods_of(server)
    async with sessions_at(balancer.port, server, key) as sessions:
        homes = {pod.owner: [] for pod in pods}
        for name, session in sessions.items():
            homes[session.relay.calls[0].headers["mcp-session-id"].split("~")[0]].append(name)
        first, second, third = sorted(pods, key=lambda pod: -len(homes[pod.owner]))
        assert homes[first.owner] and homes[second.owner], homes
        for n, gone in enumerate((first, second), start=1):
            await gone.kill()
            for session in sessions.values():
                session.begin(key)
            await assert_go_on(sessions, n, key)
        await together(first.begin(), second.begin())
        await together(*(balancer.knows(pod.sidecar.port, "ready") for pod in (first, second)))
        for session in sessions.values():
            session.begin(key)
        await assert_go_on(sessions, 3, key)
        moved = [revived(pod) for pod in pods]
        # What has moved once or twice stays where it is: those that come back take nothing over.
        assert moved[pods.index(first)] == moved[pods.index(second)] == 0 and moved[pods.index(third)] > 0, moved


def revived(pod):
    return stack.metric(pod.sidecar.admin, 'session_revivals_total{outcome="revived"}') or 0


async def test_straight_to_a_sidecar_the_session_of_a_pod_that_is_gone_is_lost(pods_of, key):
    """The balancer finds the session's home; a client of one sidecar gets that sidecar's refusal while the other's lease runs."""
    pods, _ = await pods_of("typescript-v1")
    first, second, _ = pods
    async with sessions_at(first.sidecar.port, "typescript-v1", key, list(CLIENTS)[:1]) as sessions:
        [session] = sessions.values()
        headers = session.relay.calls[0].headers
        names = {name: headers[name] for name in ("mcp-session-id", "mcp-protocol-version") if name in headers}
        body = {"jsonrpc": "2.0", "id": 7, "method": "tools/list"}
        refused = await ask(second.sidecar.port, body=body, **{k.replace("-", "_"): v for k, v in names.items()})
        assert refused.status == 404
        await eventually(lambda: session.listens, START_LIMIT)
