"""Tasks whose polls or handles are lost, and whose server or proxy is killed, drained or replaced. Each tool runs once."""

import asyncio

import pytest

from harness import stack, tasks
from harness.checks import assert_runs
from harness.relay import Cut, Relay
from harness.replicas import Balancer, Replica, by_signal
from harness.stack import MODERN, START_LIMIT, TASK_CLIENTS, Client, counters, eventually, run_client, together
from harness.tasks import handles, one_handle

pytestmark = pytest.mark.anyio

# The Python and TypeScript SDKs resume after `retry`, and once more as late. The proxy starts between the two, also on a busy machine.
RETRY_MS = 2500
LEASE_SECS = 2


def slow(relay, client, seconds, key, **options):
    return Client(client, MODERN, relay.url(), "slow_compute", {"seconds": seconds, "label": "it", "key": key}, **options)


def report(relay, said):
    return "\n".join([relay.report(), *(str(line) for line in said.lines), *said.noise])


async def assert_it_ended(relay, said, seconds, server, key):
    """The client got the result of a task, by one call of one run."""
    assert (said.result, said.error) == (f"it after {seconds} s", None), report(relay, said)
    assert len(relay.calls) == len(set(handles(relay))) == 1, report(relay, said)
    assert_runs(server, key)


@pytest.mark.parametrize("client", TASK_CLIENTS)
async def test_a_held_poll_that_is_cut_is_resumed(client, servers, proxies, key):
    async with (
        Relay(proxies["tasks"], Cut("silence", 300, on="poll")) as relay,
        slow(relay, client, 3, key) as calling,
    ):
        await assert_it_ended(relay, await calling.finish(), 3, servers["tasks"], key)
        assert (relay.cuts, bool(relay.resumes)) == (1, True), relay.report()


LOST = Cut("request", on="poll")


async def test_a_lost_poll_is_sent_again(servers, proxies, key):
    async with Relay(proxies["tasks"], LOST) as relay, slow(relay, "rmcp-tasks", 2, key) as calling:
        said = await calling.finish()
        assert "lost" in [line["event"] for _, line in said.lines], report(relay, said)
        await assert_it_ended(relay, said, 2, servers["tasks"], key)
        assert relay.cuts == 1


@pytest.mark.parametrize("client", ["fastmcp-tasks", "ext-tasks"])
async def test_a_client_that_gives_up_after_a_lost_poll_leaves_its_task_alone(client, servers, proxies, key):
    """These SDKs do not send a poll again. The outcome waits for the next client."""
    async with Relay(proxies["tasks"], LOST) as relay, slow(relay, client, 2, key) as calling:
        said = await calling.finish()
        assert (said.ending, relay.cuts) == ("error", 1), report(relay, said)
        [task] = handles(relay)
    assert tasks.text_of(await tasks.settled(proxies["tasks"], task)) == "it after 2 s"
    assert_runs(servers["tasks"], key)


async def test_the_inspector_leaves_its_task_alone_as_well(servers, proxies, key, tmp_path):
    async with Relay(proxies["tasks"], LOST) as relay:
        arguments = {"seconds": 2, "label": "it", "key": key}
        status, said = await tasks.inspect(relay.url(), "slow_compute", arguments, tmp_path)
        assert (status, relay.cuts) == (1, 1), said + relay.report()
        [task] = handles(relay)
    assert tasks.text_of(await tasks.settled(proxies["tasks"], task)) == "it after 2 s"
    assert_runs(servers["tasks"], key)


@pytest.mark.parametrize("client", TASK_CLIENTS)
async def test_a_task_outlives_its_client(client, servers, proxies, key):
    async with Relay(proxies["tasks"]) as relay, slow(relay, client, 6, key) as calling:
        task = await under_way(relay)
        await calling.kill()
    # Longer than the grace of a call at 2026-07-28, after which one without a task would be cancelled.
    assert tasks.text_of(await tasks.settled(proxies["tasks"], task)) == "it after 6 s"
    assert_runs(servers["tasks"], key)


HANDLE_CUTS = {
    "before": Cut("event", 0),
    "within": Cut("final"),
    "after": Cut("event", 1),
}


@pytest.mark.each_value
@pytest.mark.parametrize("cut", HANDLE_CUTS)
@pytest.mark.parametrize("client", TASK_CLIENTS)
async def test_the_handle_survives_a_cut(client, cut, servers, proxies, key):
    async with Relay(proxies["tasks"], HANDLE_CUTS[cut]) as relay:
        said = await run_client(client, MODERN, relay.url(), "slow_compute", {"seconds": 3, "label": "it", "key": key})
        await assert_it_ended(relay, said, 3, servers["tasks"], key)
        # FastMCP closes the connection at the handle, before that cut.
        assert relay.cuts == 1 or cut == "after"
        assert relay.resumes or cut == "after", relay.report()


@pytest.mark.parametrize("client", TASK_CLIENTS)
async def test_a_call_whose_client_is_away_becomes_a_task_when_it_is_back(client, servers, start, key):
    settings = {**stack.TASKS, "TASKS__AFTER_MS": 1200, "DELIVERY__COMMIT_AFTER_MS": 100}
    proxy = await asyncio.to_thread(start, stack.start_proxy, servers["tasks"], **settings)
    async with Relay(proxy.found["port"], Cut("silence", 100, primed=True, away=1.5)) as relay:
        said = await run_client(client, MODERN, relay.url(), "slow_compute", {"seconds": 4, "label": "it", "key": key})
        await assert_it_ended(relay, said, 4, servers["tasks"], key)
        [call] = relay.calls
        assert (relay.cuts, call.events, bool(relay.resumes)) == (1, [], True), relay.report()


@pytest.mark.parametrize("client", TASK_CLIENTS)
async def test_a_task_whose_server_is_killed_has_failed(client, start, key):
    server = await asyncio.to_thread(start, stack.start_server, "tasks")
    proxy = await asyncio.to_thread(start, stack.start_proxy, server.found["port"], **stack.TASKS)
    async with Relay(proxy.found["port"]) as relay, slow(relay, client, 60, key) as calling:
        task = await under_way(relay)
        server.kill()
        said = await calling.finish()
        assert "the MCP server broke off before it had answered" in (said.error or ""), report(relay, said)
        assert (await tasks.poll(proxy.found["port"], task))["error"]["code"] == -32010


@pytest.fixture
def on_disk(start, servers, tmp_path):
    """Starts a proxy with tasks whose store outlives it."""

    async def run(**settings):
        store = {"STORE__KIND": "disk", "STORE__PATH": tmp_path / "store", "DELIVERY__RETRY_MS": RETRY_MS}
        replica = await asyncio.to_thread(Replica, start, servers["tasks"], **stack.TASKS, **store, **settings)
        await replica.until(ready=True)
        return replica

    return run


async def away_and_back(replica, relay, client, n):
    """Starts the proxy again after the client has failed once to resume, unless it has the outcome of call `n`."""
    await eventually(lambda: relay.refused or len(client.transcript.outcomes) > n)
    await begin(replica)


async def begin(replica):
    await asyncio.to_thread(replica.begin)
    await replica.until(ready=True)


async def under_way(relay):
    """Waits until a poll of a client's task is held."""
    await eventually(lambda: any(poll.primes and not poll.ended for poll in relay.polls), START_LIMIT)
    return await one_handle(relay)


def assert_died(state):
    assert state["status"] == "failed", state
    assert state["error"]["code"] == -32011, state
    assert "has died" in state["error"]["message"], state


@pytest.mark.parametrize("client", TASK_CLIENTS)
async def test_a_task_whose_proxy_is_killed_has_failed(client, servers, on_disk, key):
    """The client's poll goes on after the restart, and tells of it. Tasks that had ended keep their outcomes."""
    proxy = await on_disk()
    ended = (await tasks.begin(proxy.port, "slow_compute", seconds=1, label="ended", key=f"{key}-ended"))["taskId"]
    cancelled = (await tasks.begin(proxy.port, "slow_compute", seconds=60, key=f"{key}-cancelled"))["taskId"]
    assert (await tasks.answer(proxy.port, "tasks/cancel", taskId=cancelled))["result"] == {"resultType": "complete"}
    assert tasks.text_of(await tasks.settled(proxy.port, ended)) == "ended after 1 s"
    async with Relay(proxy.port) as relay, slow(relay, client, 60, key) as calling:
        task = await under_way(relay)
        proxy.kill()
        await away_and_back(proxy, relay, calling, 0)
        said = await calling.finish()
        assert "the proxy that ran the call has died" in (said.error or ""), report(relay, said)
        assert len(relay.calls) == 1
    assert_died(await tasks.poll(proxy.port, task))
    assert tasks.text_of(await tasks.poll(proxy.port, ended)) == "ended after 1 s"
    assert (await tasks.poll(proxy.port, cancelled))["status"] == "cancelled"
    assert counters(servers["tasks"], key)["started"] == 1
    assert_runs(servers["tasks"], f"{key}-ended")
    proxy.kill()


@pytest.mark.parametrize("client", TASK_CLIENTS)
async def test_a_task_ends_within_the_drain_and_is_fetched_after_the_restart(client, servers, on_disk, key):
    """FastMCP lists the tools after its first result, which a draining proxy refuses: so it has an earlier one."""
    proxy = await on_disk()
    async with (
        Relay(proxy.port) as relay,
        Client(client, MODERN, relay.url(), "greet", {"name": "Ada"}, then=True) as calling,
    ):
        calling.begin("slow_compute", {"seconds": 3, "label": "it", "key": key})
        task = await under_way(relay)
        await by_signal(proxy)
        await away_and_back(proxy, relay, calling, 1)
        assert await calling.outcome(1) == ("result", "it after 3 s"), report(relay, calling.transcript)
        assert tasks.text_of(await tasks.poll(proxy.port, task)) == "it after 3 s"
        await calling.finish()
    assert_runs(servers["tasks"], key)
    proxy.kill()


async def test_a_drain_ends_the_tasks_that_take_longer(servers, on_disk, key):
    proxy = await on_disk(REPLICA__DRAIN_TIMEOUT_SECS=2)
    runs = [f"{key}-short", f"{key}-long"]
    begun = (tasks.begin(proxy.port, "slow_compute", seconds=n, label="it", key=run) for n, run in ((1, runs[0]), (60, runs[1])))
    short, long = [handle["taskId"] for handle in await together(*begun)]
    await by_signal(proxy)
    await begin(proxy)
    assert tasks.text_of(await tasks.poll(proxy.port, short)) == "it after 1 s"
    state = await tasks.poll(proxy.port, long)
    assert (state["status"], state["error"]["code"]) == ("failed", -32011), state
    assert_runs(servers["tasks"], runs[0])
    assert counters(servers["tasks"], runs[1])["started"] == 1
    proxy.kill()


@pytest.fixture
def replicas(redis, start, servers, key):
    """Starts two proxies with tasks on one Redis."""

    async def run():
        shared = {"STORE__KIND": "redis", "STORE__URL": redis, "STORE__PREFIX": key, "REPLICA__LEASE_SECS": LEASE_SECS}
        shared |= {**stack.TASKS, "DELIVERY__DRAIN_RETRY_MS": 500}
        begun = (
            asyncio.to_thread(Replica, start, servers["tasks"], REPLICA__NAME=name, **shared) for name in ("first", "second")
        )
        both = await together(*begun)
        await together(*(replica.until(ready=True) for replica in both))
        return both

    return run


@pytest.mark.parametrize("client", TASK_CLIENTS)
async def test_the_balancer_finds_the_replica_of_a_task(client, start, servers, key):
    """The replicas share nothing; FastMCP and the TypeScript SDK name the task in the body alone."""
    begun = (
        asyncio.to_thread(Replica, start, servers["tasks"], REPLICA__NAME=name, **stack.TASKS) for name in ("first", "second")
    )
    both = await together(*begun)
    balancer = await asyncio.to_thread(start, stack.start_balancer, [f"http://127.0.0.1:{one.port}" for one in both])
    runs = [f"{key}-{n}" for n in range(6)]
    async with (
        Relay(balancer.found["port"]) as relay,
        Client(client, MODERN, relay.url(), "multi_input", {"key": key}, then=True) as calling,
    ):
        calling.ask(at_once=[{"tool": "slow_compute", "args": {"seconds": 2, "label": run, "key": run}} for run in runs])
        calling.ask(cancel={"tool": "slow_compute", "args": {"seconds": 60, "key": f"{key}-cancelled"}})
        ending, message = await calling.outcome(len(runs) + 2)
        assert (ending, "cancel" in message) == ("error", True), report(relay, calling.transcript)
        said = await calling.finish()
        results = ["elicited, 5", *(f"{run} after 2 s" for run in runs), "at_once"]
        assert [text for _, text in said.outcomes[:-1]] == results, report(relay, said)
        assert len(set(handles(relay))) == len(runs) + 2
    assert all(stack.metric(one.admin, "tasks_created_total") > 0 for one in both)
    for run in runs:
        assert_runs(servers["tasks"], run)
    assert_runs(servers["tasks"], key, started=2, finished=2)


def owner_of(both, relay):
    """The replica that runs the call, and the other one."""
    [call] = relay.calls
    return sorted(both, key=lambda replica: replica.port != call.target)


@pytest.mark.parametrize("client", TASK_CLIENTS)
async def test_every_replica_serves_a_task(client, servers, replicas, key):
    """Polls and answers go to the replicas in turn."""
    async with Balancer(await replicas()) as relay:
        async with Client(client, MODERN, relay.url(), "multi_input", {"key": key}, then=True) as calling:
            calling.ask(cancel={"tool": "slow_compute", "args": {"seconds": 60, "key": f"{key}-cancelled"}})
            assert await calling.outcome(0) == ("result", "elicited, 5"), relay.report()
            ending, message = await calling.outcome(1)
            assert (ending, "cancel" in message) == ("error", True), relay.report()
            said = await calling.finish()
        assert said.asked == ["elicitation"] * 2
        assert len(set(handles(relay))) == len(relay.calls) == 2
        about_tasks = [exchange.target for exchange in relay.exchanges if b'"tasks/' in exchange.body]
        assert len(set(about_tasks)) == 2, relay.report()
    assert_runs(servers["tasks"], key, started=2, finished=2)
    await eventually(lambda: counters(servers["tasks"], f"{key}-cancelled")["cancelled"] == 1)


@pytest.mark.parametrize("client", TASK_CLIENTS)
async def test_a_replica_that_drains_hands_over_its_tasks_outcome(client, servers, replicas, key):
    both = await replicas()
    async with Balancer(both) as relay, slow(relay, client, 4, key) as calling:
        await under_way(relay)
        owner, other = owner_of(both, relay)
        await by_signal(owner)
        await assert_it_ended(relay, await calling.finish(), 4, servers["tasks"], key)
        [task] = set(handles(relay))
        assert tasks.text_of(await tasks.poll(other.port, task)) == "it after 4 s"


@pytest.mark.parametrize("client", TASK_CLIENTS)
async def test_a_task_whose_replica_is_killed_has_failed_at_the_others(client, servers, replicas, key):
    both = await replicas()
    async with Balancer(both) as relay, slow(relay, client, 60, key) as calling:
        task = await under_way(relay)
        owner, other = owner_of(both, relay)
        ended = (await tasks.begin(owner.port, "slow_compute", seconds=1, label="ended", key=f"{key}-ended"))["taskId"]
        assert tasks.text_of(await tasks.settled(other.port, ended)) == "ended after 1 s"
        owner.kill()
        said = await calling.finish()
        # A poll that the dead replica held may be lost for those that do not send it again.
        assert said.ending == "error", report(relay, said)
        assert_died(await tasks.settled(other.port, task))
        assert tasks.text_of(await tasks.poll(other.port, ended)) == "ended after 1 s"
        assert len(relay.calls) == 1
    assert counters(servers["tasks"], key)["started"] == 1
    assert_runs(servers["tasks"], f"{key}-ended")


async def test_the_balancer_finds_the_failure_of_a_task_whose_owner_was_killed(start, servers, replicas, key):
    """The other replica tells it, once the lease of the owner is over. Until then a poll may find no replica that knows more."""
    both = await replicas()
    balancer = await asyncio.to_thread(start, stack.start_balancer, [f"http://127.0.0.1:{one.port}" for one in both])
    port = balancer.found["port"]
    task = (await tasks.begin(port, "slow_compute", seconds=60, label="it", key=key))["taskId"]
    [owner] = [one for one in both if stack.metric(one.admin, "tasks_created_total") > 0]
    owner.kill()

    async def told():
        response = await tasks.send(port, "tasks/get", taskId=task, accept="application/json")
        [message] = await response.messages()
        return message.get("result", {}).get("status") not in (None, "working")

    async with asyncio.timeout(START_LIMIT):
        while not await told():
            await asyncio.sleep(0.1)
    assert_died(await tasks.poll(port, task))
    assert counters(servers["tasks"], key)["started"] == 1
