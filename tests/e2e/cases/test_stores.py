"""Stores that outlive the proxy: stock clients while the proxy is killed, drained and restarted.

| client | after a kill of the proxy |
|---|---|
| TypeScript, Python | resumes after `retry` and once more as late: the restart must be done within twice that |
| rmcp | resumes at once, then after 1, 2, 4, 8 s, for ever |
"""

import asyncio

import pytest

from harness import stack
from harness.checks import assert_runs, assert_whole
from harness.load import INTERVAL_MS, LIGHT, LOAD, WHO, Load, assert_one_honest_error
from harness.relay import Cut, Relay
from harness.replicas import DRAINS, Balancer, Replica, by_signal
from harness.stack import LEGACY, MODERN, SERVERS, START_LIMIT, Client, eventually, together

pytestmark = pytest.mark.anyio

# Shorter than the default, for a fast test; longer than this load balancer needs, which asks before every request.
DRAIN_RETRY_MS = 500
LEASE_SECS = 2


@pytest.fixture
def replicas(redis, start, key):
    """Starts two replicas in front of the server at a port."""

    async def run(port, **settings):
        shared = {"STORE__KIND": "redis", "STORE__URL": redis, "STORE__PREFIX": key}
        shared |= {"REPLICA__LEASE_SECS": LEASE_SECS, "DELIVERY__DRAIN_RETRY_MS": DRAIN_RETRY_MS, **settings}
        names = ("first", "second")
        both = await together(
            *(asyncio.to_thread(Replica, start, port, REPLICA__NAME=name, **shared) for name in names)
        )
        await together(*(replica.until(ready=True) for replica in both))
        return both

    return run


def server_for(era):
    return {LEGACY: "typescript-v1", MODERN: "typescript-v2"}[era]


async def killed_and_restarted(replica):
    replica.kill()
    took = await asyncio.to_thread(replica.begin)
    print(f"the restart took {took:.2f} s")


def on_disk(start, port, folder):
    """A proxy whose clients wait long enough for its restart, also on a busy machine."""
    settings = {"STORE__KIND": "disk", "STORE__PATH": folder / "store", "DELIVERY__RETRY_MS": 2000}
    return asyncio.to_thread(Replica, start, port, **settings)


@pytest.mark.each_value("disk")
@pytest.mark.parametrize("client, era", WHO)
async def test_disk_a_call_that_the_proxy_died_in_ends_with_one_error(client, era, servers, start, key, tmp_path):
    port = servers[server_for(era)]
    proxy = await on_disk(start, port, tmp_path)
    async with Relay(proxy.port) as relay, Load(relay, [port], era, key, [client]) as load:
        seen = len(load.clients[0].transcript.progress)
        await killed_and_restarted(proxy)
        [(name, said)] = await load.finish()
        assert_one_honest_error(relay, said)
        assert len(said.progress) >= seen
        assert len(relay.calls) == 1
        assert stack.counters(port, name)["started"] == 1
    proxy.kill()


@pytest.mark.each_value("disk")
@pytest.mark.parametrize("client, era", WHO)
async def test_disk_a_call_that_was_over_is_fetched_after_a_crash(client, era, servers, start, key, tmp_path):
    """The client was cut off just before the end; its resume waits until the proxy is back."""
    server = server_for(era)
    proxy = await on_disk(start, servers[server], tmp_path)
    tool, arguments, done = SERVERS[server].long(3, INTERVAL_MS, key)
    async with (
        Relay(proxy.port, Cut("final", hold=True)) as relay,
        Client(client, era, relay.url(), tool, arguments) as calling,
    ):
        await eventually(lambda: relay.cuts == 1, START_LIMIT)
        await killed_and_restarted(proxy)
        relay.release()
        assert_whole(relay, await calling.finish(), 3, done)
        assert_runs(servers[server], key)
    # The client has received all that a drain would wait for.
    proxy.kill()


DRAINED = [
    pytest.param(*case, id="-".join(case[:2]) + ("-by-connection" if case[3] else ""))
    for case in (
        ("signal", "typescript-v1-stateless", LEGACY, False),
        ("command", "typescript-v1-stateless", LEGACY, False),
        ("request", "typescript-v1-stateless", LEGACY, False),
        ("signal", "typescript-v1", LEGACY, False),
        ("signal", "typescript-v2", MODERN, False),
        ("signal", "typescript-v1-stateless", LEGACY, True),
    )
]


@pytest.mark.each_value
@pytest.mark.parametrize("drain, server, era, whole_connections", DRAINED)
async def test_redis_a_drain_under_load_loses_nothing(drain, server, era, whole_connections, servers, replicas, key):
    both = await replicas(servers[server])
    clients = LOAD[era] if drain == "signal" else LIGHT
    async with (
        Balancer(both, whole_connections) as balancer,
        Load(balancer, [servers[server]], era, key, clients) as load,
    ):
        drained, other = sorted(both, key=lambda replica: -len(balancer.calls_at(replica)))
        moving = balancer.calls_at(drained)
        draining = asyncio.create_task(DRAINS[drain](drained))
        # At once: every call still runs, and none ends before the test lets it.
        await drained.until(ready=False)
        assert await drained.readiness() == (503, "draining\n")
        if era == LEGACY:
            # Their clients may be closed on, were told when to resume, and are with the other replica now.
            await eventually(lambda: all(balancer.resumed_at(other, call) for call in moving))
            assert {call.retry for call in moving} == {DRAIN_RETRY_MS}, balancer.report()
        load.end()
        load.assert_all_completed(await load.finish())
        await draining
        assert len(balancer.calls) == len(load.names), "a call was sent again"
        assert not any(balancer.resumed_at(drained, call) for call in balancer.calls), balancer.report()
        # At 2026-07-28 a client need not return, so these stayed.
        assert era == LEGACY or balancer.resumes == []


@pytest.mark.parametrize("server, era", [("typescript-v1-stateless", LEGACY), ("typescript-v2", MODERN)])
async def test_redis_the_calls_of_a_killed_replica_end_with_one_error(server, era, servers, replicas, key):
    both = await replicas(servers[server])
    async with Balancer(both) as balancer, Load(balancer, [servers[server]], era, key, LOAD[era]) as load:
        killed = both[0]
        asked = [message for call in balancer.calls_at(killed) for message in call.messages]
        lost = {message["params"]["arguments"]["key"] for message in asked}
        assert lost
        killed.kill()
        told = await together(*(client.finish() for client in load.clients_of(lost)))
        for said in told:
            assert_one_honest_error(balancer, said)
        load.end()
        load.assert_all_completed([(name, said) for name, said in await load.finish() if name not in lost])
        assert len(balancer.calls) == len(load.names), "a call was sent again"


@pytest.mark.parametrize("server, era", [("typescript-v1-stateless", LEGACY), ("typescript-v2", MODERN)])
async def test_redis_a_rolling_restart_under_load_loses_nothing(server, era, servers, replicas, key):
    # On a loopback address a drain gives load balancers no time to notice by default: a new call could meet the end of the listener.
    both = await replicas(servers[server], REPLICA__DRAIN_DELAY_SECS=2)
    rolling = True
    calls = []

    async with Balancer(both) as balancer:

        async def one_after_the_other(lane, clients):
            while rolling:
                name = f"{key}-{lane}-{len(calls)}"
                client = clients[len(calls) % len(clients)]
                tool, arguments, done = SERVERS[server].long(5, INTERVAL_MS, name)
                calls.append(name)
                said = await stack.run_client(client, era, balancer.url(), tool, arguments)
                assert_whole(balancer, said, 5, done)
                assert_runs(servers[server], name)

        def under_way_at(replica):
            return [call for call in balancer.calls_at(replica) if call.status and not call.ended]

        async def roll():
            nonlocal rolling
            try:
                for replica in both:
                    # Each process has a call to lose.
                    await eventually(lambda: under_way_at(replica), START_LIMIT)
                    await by_signal(replica)
                    await asyncio.to_thread(replica.begin)
                    await replica.until(ready=True)
            finally:
                rolling = False

        clients = LOAD[era]
        lanes = [one_after_the_other(lane, clients[lane:] + clients[:lane]) for lane in range(4)]
        await together(roll(), *lanes)
        assert len(balancer.calls) == len(calls), "a call was sent again"
