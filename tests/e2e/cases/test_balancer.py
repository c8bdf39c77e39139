"""Three sidecars, each in front of its own server, behind two balancers, while any part of that fails or restarts.

| failure | calls whose server and sidecar live | the others |
|---|---|---|
| a sidecar, with a shared store | go on | end with one honest error within the lease |
| a sidecar, without | go on | an honest error when their client resumes |
| the shared store | go on; a client that is cut meanwhile resumes at the owner | – |
| a balancer | resume through the other one | – |
"""

import asyncio
import contextlib
import json
import os

import pytest

from harness import stack
from harness.balancer import BalancerProcess, Fleet, Front, Island, Pipe, Redis
from harness.checks import assert_got, assert_ran_once, assert_whole
from harness.dialects import ResumeTokens, StreamUrl
from harness.dialects.wire import Client as Wire
from harness.load import INTERVAL_MS, LIGHT, LOAD, Load, assert_one_honest_error
from harness.raw import ask, call, open_session
from harness.relay import Cut
from harness.replicas import Replica, by_signal, stream_of
from harness.stack import LEGACY, MODERN, SERVERS, SLICES, START_LIMIT, Client, eventually, run_client, together

pytestmark = pytest.mark.anyio

SESSIONLESS = {LEGACY: "typescript-v1-stateless", MODERN: "typescript-v2"}
WITH_SESSIONS = "typescript-v1"
CLIENTS = LIGHT[:6]
# The error for a client whose session's sidecar accepts no new calls.
HONEST_REFUSAL = "the proxy is shutting down"

LEASE_SECS = 2
# Progress notifications of a call in a rolling restart: it takes longer than the start of its client.
STEPS = 30
# The TypeScript SDKs resume twice, and the second one counts on a busy machine.
RETRY_MS = 1000

SIDECAR = {
    "REPLICA__LEASE_SECS": LEASE_SECS,
    "DELIVERY__RETRY_MS": RETRY_MS,
    "DELIVERY__DRAIN_RETRY_MS": RETRY_MS,
    "DELIVERY__COMMIT_AFTER_MS": 100,
}
BALANCER = {
    "BALANCE__HEALTH_MS": 250,
    "BALANCE__HEALTH_TIMEOUT_MS": 2000,
    "BALANCE__UNHEALTHY_AFTER": 2,
    "BALANCE__SLOW_START_SECS": 0,
}
MEMORY = {"STORE__KIND": "memory"}


@pytest.fixture
def start_and_kill():
    """As `start`, but kills the processes, since a graceful end would wait for clients that have left."""
    running = []

    def run(what, *args, **settings):
        process = what(*args, **settings)
        running.append(process)
        return process.wait()

    yield run
    for process in running:
        process.kill()


@pytest.fixture
def own_redis(start_and_kill, tmp_path):
    return Redis(start_and_kill, tmp_path)


@pytest.fixture
def balancers_before(start_and_kill):
    """Starts two balancers in front of the sidecars at these URLs."""

    async def run(urls, grace_secs=30):
        settings = BALANCER | {"BALANCE__GRACE_SECS": grace_secs}
        pair = await together(
            *(asyncio.to_thread(BalancerProcess, start_and_kill, urls, **settings) for _ in range(2))
        )
        await together(*(knows_all(balancer, len(urls)) for balancer in pair))
        return pair

    return run


@pytest.fixture
def fleet(threes, redis, start_and_kill, balancers_before, key):
    """Starts sidecars and balancers; `grace_secs` is the balancers', all other settings are the sidecars'."""

    async def run(server=SESSIONLESS[LEGACY], grace_secs=30, **settings):
        ports = threes[server]
        sidecars = await asyncio.to_thread(start_sidecars, ports, settings)
        return Fleet(ports, sidecars, await balancers_before(url_of(sidecars), grace_secs))

    def start_sidecars(ports, settings):
        shared = SIDECAR | {"STORE__KIND": "redis", "STORE__URL": redis, "STORE__PREFIX": key} | settings
        names = ("first", "second", "third")
        named = zip(ports, names, strict=True)
        return [Replica(start_and_kill, port, REPLICA__NAME=name, **shared) for port, name in named]

    return run


def url_of(sidecars):
    return [f"http://127.0.0.1:{sidecar.port}" for sidecar in sidecars]


async def knows_all(balancer, how_many):
    """Waits until the balancer sends calls to all of them."""
    await eventually(lambda: list(balancer.known().values()) == ["ready"] * how_many, START_LIMIT)


def now():
    return asyncio.get_running_loop().time()


async def begin_raw(port, key):
    """A call of bare requests that runs until the gate of `key` is open: its session, and its response."""
    session = await open_session(port)
    body = call(1, "until_open", gate=key, interval_ms=INTERVAL_MS, key=f"{key}-raw")
    return session, await ask(port, body=body, **session)


async def data_event(answer):
    """The next event with data."""
    while (event := await answer.event()) and not event.data:
        pass
    return event


def progress_of(event):
    return json.loads(event.data)["params"]["progress"]


def resume(port, session, event_id):
    return ask(port, method="GET", last_event_id=event_id, **session)


async def resume_patiently(port, session, event_id):
    """Resumes again while the sidecar does not know yet whether others hold its lease to have ended."""
    deadline = now() + START_LIMIT
    while (answer := await resume(port, session, event_id)).status == 503 and now() < deadline:
        answer.close()
        await asyncio.sleep(float(answer.headers["retry-after"]))
    return answer


async def assert_only_these_are_lost(front, load, lost):
    """Asserts that the lost calls got one error while the others run, and that all others lost no event."""
    assert lost and len(lost) < len(load.names), f"nothing to compare: {lost}"
    for said in await together(*(client.finish() for client in load.clients_of(lost))):
        assert_one_honest_error(front, said)
    load.end()
    load.assert_all_completed([(name, said) for name, said in await load.finish() if name not in lost])
    assert len(front.calls) == len(load.names), "a call was sent again"


async def assert_all_came_back_once(front, moved):
    """Asserts that each closed client is back while its call still runs, and was not closed on again."""

    def resumed():
        streams = [stream_of(exchange.primes[0]) for exchange in front.calls if key_of(exchange) in moved]
        back = [stream_of(exchange.headers["last-event-id"]) for exchange in front.resumes]
        return [back.count(stream) for stream in streams]

    await eventually(lambda: all(resumed()), START_LIMIT)
    await asyncio.sleep(2 * RETRY_MS / 1000)
    assert resumed() == [1] * len(moved), front.report()


def key_of(exchange):
    [message] = exchange.messages
    return message["params"]["arguments"].get("key")


def has_unended(front, balancer):
    """True if a response is in flight through the balancer."""
    return any(exchange.status and not exchange.ended for exchange in front.calls_at(balancer))


async def restart_balancers(fleet, front):
    """Restarts the balancers one after the other, each with a response in flight."""
    for balancer in fleet.balancers:
        await eventually(lambda: has_unended(front, balancer), START_LIMIT)
        await by_signal(balancer)
        await asyncio.to_thread(balancer.begin)
        await balancer.until(ready=True)


def busiest(fleet, names):
    """The sidecar with the most of these calls, and the calls there."""
    there = {sidecar: fleet.calls_at(sidecar, names) for sidecar in fleet.sidecars}
    return max(there.items(), key=lambda found: len(found[1]))


# Failures of a sidecar.


@pytest.mark.parametrize("era", SESSIONLESS)
async def test_the_calls_of_a_killed_sidecar_end_with_one_error(era, fleet, key):
    fleet = await fleet(SESSIONLESS[era])
    async with Front(fleet.balancers) as front, Load(front, fleet.ports, era, key, LOAD[era]) as load:
        killed, lost = busiest(fleet, load.names)
        killed.kill()
        await assert_only_these_are_lost(front, load, lost)


async def test_a_frozen_sidecar_is_left_and_serves_nothing_stale_afterwards(fleet, key):
    fleet = await fleet()
    async with Front(fleet.balancers) as front, Load(front, fleet.ports, LEGACY, key, CLIENTS) as load:
        frozen, lost = busiest(fleet, load.names)
        # The cursor of another call, for a later resume.
        session, answer = await begin_raw(frozen.port, key)
        seen = [await data_event(answer), await data_event(answer)]
        frozen.process.freeze()
        await together(*(client.until(lambda said: said.error is not None) for client in load.clients_of(lost)))
        # The call ends when its client asks for it at another replica; until then it would continue at its owner.
        other = next(sidecar for sidecar in fleet.sidecars if sidecar is not frozen)
        told = await (await resume(other.port, session, seen[-1].id)).messages()
        frozen.process.thaw()
        for balancer in fleet.balancers:
            await balancer.knows(frozen.port, "ready")
        for sidecar in fleet.sidecars:
            late = await resume(sidecar.port, session, seen[-1].id)
            messages = await late.messages()
            # The events logged while the sidecar lived, and the end written by another replica; nothing that its server sent
            # since.
            *logged, end = messages
            assert "the proxy that ran the call has died" in end["error"]["message"]
            assert [message["params"]["progress"] for message in logged] == list(range(3, 3 + len(logged)))
            assert messages == told, "it went on"
        await assert_only_these_are_lost(front, load, lost)
        # The sidecar is back among the replicas.
        said = await run_client("rmcp", LEGACY, f"http://127.0.0.1:{frozen.port}/mcp", "quick", {"key": f"{key}-new"})
        assert (said.result, fleet.ran_at(f"{key}-new")) == ("quick", frozen)


async def test_calls_without_an_answer_yet_are_told_that_their_sidecar_is_frozen(fleet, key):
    fleet = await fleet(WITH_SESSIONS, REPLICA__WRAP_SESSIONS="true")
    frozen, _, _ = fleet.sidecars
    session = await open_session(frozen.port)
    # On a kept connection, and on a new one.
    for n, balancer in enumerate(fleet.balancers):
        quick = await ask(balancer.port, body=call(n, "quick", key=f"{key}-{n}"), **session)
        assert "result" in (await quick.messages())[-1]
    frozen.process.freeze()
    try:
        asked = [
            ask(balancer.port, body=call(number, "quick", key=f"{key}-{balancer.port}-{number}"), **session)
            for balancer in fleet.balancers
            for number in (7, 8, 9)
        ]
        for number, answer in zip((7, 8, 9) * 2, await together(*asked), strict=True):
            error = await answer.json()
            assert (answer.status, error["id"]) == (502, number), error
            assert "broke off" in error["error"]["message"] and error["error"]["data"]["mayHaveRun"]
    finally:
        frozen.process.thaw()


async def test_a_drained_sidecar_loses_nothing(fleet, key):
    fleet = await fleet()
    async with Front(fleet.balancers) as front, Load(front, fleet.ports, LEGACY, key, CLIENTS) as load:
        drained, moved = busiest(fleet, load.names)
        draining = asyncio.create_task(by_signal(drained))
        for balancer in fleet.balancers:
            await balancer.knows(drained.port, "closing")
        await assert_all_came_back_once(front, moved)
        # New calls go to other sidecars, and none is refused.
        new = [f"{key}-new-{n}" for n in range(4)]
        arguments = [{"key": name} for name in new]
        told = await together(*(run_client("rmcp", LEGACY, front.url(), "quick", each) for each in arguments))
        assert [said.result for said in told] == ["quick"] * len(new), [said.noise for said in told]
        assert fleet.calls_at(drained, new) == set()
        load.end()
        load.assert_all_completed(await load.finish())
        await draining
        assert len(front.calls) == len(load.names) + len(new), "a call was sent again"


# Failures of the network: the sidecar lives, and its packets are lost without an error.


LINKS = ["clients", "store", "server"]


@pytest.fixture
def islands():
    """A network namespace for each of three sidecars, with its links to this machine by purpose."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    with contextlib.ExitStack() as made:
        yield [made.enter_context(Island(LINKS)) for _ in range(3)]


@pytest.fixture
def scattered(islands, balancers_before, threes, own_redis, start_and_kill, key):
    """`async with scattered() as fleet`: a fleet whose sidecars are in network namespaces of their own."""

    @contextlib.asynccontextmanager
    async def run():
        ports = threes[SESSIONLESS[LEGACY]]
        async with contextlib.AsyncExitStack() as pipes:
            sidecars = []
            for n, (island, port) in enumerate(zip(islands, ports, strict=True)):
                store = await pipes.enter_async_context(Pipe(island.here("store"), own_redis.port))
                server = await pipes.enter_async_context(Pipe(island.here("server"), port))
                sidecars.append(await asyncio.to_thread(start_there, n, island, store, server))
            places = [(island.there("clients"), sidecar) for island, sidecar in zip(islands, sidecars, strict=True)]
            urls = [f"http://{host}:{sidecar.found['port']}" for host, sidecar in places]
            yield Fleet(ports, sidecars, await balancers_before(urls))

    def start_there(n, island, store, server):
        return start_and_kill(
            stack.start_proxy_before,
            f"http://{island.here('server')}:{server.port}/mcp",
            # The tests distinguish the sidecars in a balancer's list by port.
            listen=8001 + n,
            host=island.there("clients"),
            within=island.within,
            REPLICA__NAME=f"island-{n}",
            STORE__KIND="redis",
            STORE__URL=f"redis://{island.here('store')}:{store.port}",
            STORE__PREFIX=key,
            **SIDECAR,
        )

    return run


async def is_known_to_be(condition, sidecar, fleet):
    for balancer in fleet.balancers:
        await balancer.knows(sidecar.found["port"], condition)


async def test_a_sidecar_that_no_balancer_reaches_has_its_calls_go_on_elsewhere(scattered, islands, key):
    """The sidecar still writes to the store, and the others read there."""
    async with (
        scattered() as fleet,
        Front(fleet.balancers) as front,
        Load(front, fleet.ports, LEGACY, key, CLIENTS) as load,
    ):
        sidecar, names = busiest(fleet, load.names)
        island, moved = islands[fleet.sidecars.index(sidecar)], load.clients_of(names)
        island.darken("clients")
        await is_known_to_be("down", sidecar, fleet)
        await eventually(lambda: len(front.resumes) >= len(moved), START_LIMIT)
        before = {client: len(client.transcript.progress) for client in moved}
        await eventually(
            lambda: all(len(client.transcript.progress) > n + 5 for client, n in before.items()), START_LIMIT
        )
        load.end()
        load.assert_all_completed(await load.finish())
        assert len(front.calls) == len(load.names), "a call was sent again"
        island.lighten("clients")
        await is_known_to_be("ready", sidecar, fleet)


async def test_the_calls_of_an_isolated_sidecar_end_with_one_error(scattered, islands, key):
    async with (
        scattered() as fleet,
        Front(fleet.balancers) as front,
        Load(front, fleet.ports, LEGACY, key, CLIENTS) as load,
    ):
        sidecar, lost = busiest(fleet, load.names)
        island = islands[fleet.sidecars.index(sidecar)]
        island.darken(*LINKS)
        await assert_only_these_are_lost(front, load, lost)
        island.lighten(*LINKS)
        await is_known_to_be("ready", sidecar, fleet)


async def test_a_sidecar_that_does_not_reach_the_store_serves_what_it_has(scattered, islands, key):
    """For longer than the lease: its clients notice nothing."""
    async with (
        scattered() as fleet,
        Front(fleet.balancers) as front,
        Load(front, fleet.ports, LEGACY, key, CLIENTS) as load,
    ):
        sidecar, _ = busiest(fleet, load.names)
        island = islands[fleet.sidecars.index(sidecar)]
        island.darken("store")
        await asyncio.sleep(2 * LEASE_SECS)
        load.end()
        load.assert_all_completed(await load.finish())
        assert front.resumes == [], front.report()
        island.lighten("store")
        await is_known_to_be("ready", sidecar, fleet)


# Failures of the store.


@pytest.mark.parametrize("how", ["killed", "frozen"])
async def test_calls_go_on_while_redis_is_away(how, fleet, own_redis, key):
    """A client that is cut meanwhile resumes at the one sidecar that has the call."""
    fleet = await fleet(STORE__URL=own_redis.url)
    async with Front(fleet.balancers) as front, Load(front, fleet.ports, LEGACY, key, CLIENTS) as load:
        gone, stays = fleet.balancers
        session, answer = await begin_raw(stays.port, key)
        event = await data_event(answer)
        if how == "killed":
            own_redis.process.kill()
        else:
            own_redis.process.freeze()
        since = now()
        cut = [exchange for exchange in front.calls_at(gone) if not exchange.ended]
        gone.kill()
        answer.reset()
        await eventually(lambda: len(front.resumes_at(stays)) >= len(cut), START_LIMIT)
        # Resumed, and still receiving new events, while the store is unreachable.
        answer = await resume_patiently(stays.port, session, event.id)
        after = await data_event(answer)
        assert progress_of(after) == progress_of(event) + 1
        owner = fleet.ran_at(f"{key}-raw")
        [other, _] = fleet.others(owner)
        # Without the balancer this would depend on chance.
        assert (await resume(other.port, session, event.id)).status == 503
        await asyncio.sleep(max(0.0, since + LEASE_SECS + 1 - now()))
        assert (await data_event(answer)) is not None
        if how == "killed":
            await asyncio.to_thread(own_redis.begin)
        else:
            own_redis.process.thaw()
        load.end()
        load.assert_all_completed(await load.finish())
        assert len(front.calls) == len(load.names), "a call was sent again"


# Failures of a balancer.


@pytest.mark.parametrize("how", ["killed", "stopped", "frozen"])
async def test_calls_through_a_lost_balancer_go_on_through_the_other(how, fleet, key):
    fleet = await fleet(grace_secs=1)
    async with Front(fleet.balancers) as front, Load(front, fleet.ports, LEGACY, key, LIGHT) as load:
        lost, other = fleet.balancers
        cut = [exchange for exchange in front.calls_at(lost) if not exchange.ended]
        assert cut and front.calls_at(other)
        if how == "killed":
            lost.kill()
        elif how == "stopped":
            lost.process.terminate()
            await lost.until(ready=False)
            assert await lost.readiness() == (503, "stopping\n")
            # No call has ended by then: all are cut.
            assert await asyncio.to_thread(lost.process.ended) == 0
        else:
            lost.process.freeze()
            front.abandon(lost)
        await eventually(lambda: len(front.resumes_at(other)) >= len(cut), START_LIMIT)
        load.end()
        load.assert_all_completed(await load.finish())
        assert front.resumes_at(lost) == []
        assert len(front.calls) == len(load.names), "a call was sent again"


@pytest.mark.parametrize("restarted", [False, True], ids=["two", "restarted"])
async def test_balancers_agree_and_remember_nothing(restarted, fleet, key):
    """The calls of one balancer are found by the other at every owner, without a shared store."""
    fleet = await fleet(**MEMORY)
    one, other = fleet.balancers
    names = [f"{key}-{n}" for n in range(3)]
    # All in flight at once, so that each is at another sidecar.
    begun = [await begin_raw(one.port, name) for name in names]
    seen = [await data_event(answer) for _, answer in begun]
    assert len({fleet.ran_at(f"{name}-raw").port for name in names}) == 3
    for _, answer in begun:
        answer.reset()
    if restarted:
        one.kill()
        await asyncio.to_thread(one.begin)
        other = one
    for name, (session, _), event in zip(names, begun, seen, strict=True):
        answer = await resume(other.port, session, event.id)
        assert answer.status == 200
        assert progress_of(await data_event(answer)) == progress_of(event) + 1
        for port in fleet.ports:
            stack.open_gate(port, name)
        assert "result" in (await answer.messages())[-1]
        assert_ran_once(fleet.ports, f"{name}-raw")


# Restarts of all parts, one after the other.


async def test_a_rolling_restart_of_everything_loses_nothing(fleet, key):
    # On a loopback address a drain gives balancers no time to notice by default: a new call could meet the end of the listener.
    fleet = await fleet(REPLICA__DRAIN_DELAY_SECS=2)
    rolling = True
    names, under_way = [], set()

    async with Front(fleet.balancers) as front:

        async def one_after_the_other(lane):
            while rolling:
                name = f"{key}-{lane}-{len(names)}"
                client = LIGHT[len(names) % len(LIGHT)]
                tool, arguments, done = SERVERS[SESSIONLESS[LEGACY]].long(STEPS, INTERVAL_MS, name)
                names.append(name)
                under_way.add(name)
                said = await run_client(client, LEGACY, front.url(), tool, arguments)
                under_way.discard(name)
                assert_whole(front, said, STEPS, done)
                assert_ran_once(fleet.ports, name)

        async def roll():
            nonlocal rolling
            try:
                for sidecar in fleet.sidecars:
                    # Each process has a call to lose.
                    await eventually(lambda: fleet.is_busy(sidecar, under_way), START_LIMIT)
                    await by_signal(sidecar)
                    await asyncio.to_thread(sidecar.begin)
                    await together(*(balancer.knows(sidecar.port, "ready") for balancer in fleet.balancers))
                await restart_balancers(fleet, front)
            finally:
                rolling = False

        await together(roll(), *(one_after_the_other(lane) for lane in range(4)))
        assert len(front.calls) == len(names), "a call was sent again"
        print(f"{len(names)} calls, {len(front.resumes)} resumes")


# Servers with sessions.


async def test_each_session_finds_its_own_server(fleet, key):
    """Also the client responses to the server's requests."""
    fleet = await fleet(WITH_SESSIONS, REPLICA__WRAP_SESSIONS="true")
    names = [f"{key}-{n}" for n in range(6)]
    async with Front(fleet.balancers) as front:
        told = await together(
            *(
                run_client(client, LEGACY, front.url(), "survey", {"key": name})
                for client, name in zip(CLIENTS, names, strict=True)
            )
        )
        for said, name in zip(told, names, strict=True):
            assert said.result == "answered sampled elicited", f"{said}\n{front.report()}"
            assert said.asked == ["sampling", "elicitation"]
            assert_ran_once(fleet.ports, name)
        assert len({fleet.ran_at(name).port for name in names}) > 1, "nothing had to be found"


async def test_calls_in_sessions_complete_in_a_drain(fleet, key):
    fleet = await fleet(WITH_SESSIONS, REPLICA__WRAP_SESSIONS="true")
    async with Front(fleet.balancers) as front, Load(front, fleet.ports, LEGACY, key, CLIENTS) as load:
        drained, moved = busiest(fleet, load.names)
        draining = asyncio.create_task(by_signal(drained))
        for balancer in fleet.balancers:
            await balancer.knows(drained.port, "closing")
        await assert_all_came_back_once(front, moved)
        load.end()
        load.assert_all_completed(await load.finish())
        await draining
        assert len(front.calls) == len(load.names), "a call was sent again"


async def test_a_rolling_restart_loses_no_call_that_had_begun_in_a_session(fleet, key):
    """A call that had not begun gets an error, and is made in another session."""
    # As above.
    fleet = await fleet(WITH_SESSIONS, REPLICA__WRAP_SESSIONS="true", REPLICA__DRAIN_DELAY_SECS="2")
    lanes = 4
    rolling = True
    completed, refused, under_way = [], [], set()

    async with Front(fleet.balancers) as front:

        async def one_after_the_other(lane):
            while rolling:
                name = f"{key}-{lane}-{len(completed)}-{len(refused)}"
                client = LIGHT[lane]
                tool, arguments, done = SERVERS[WITH_SESSIONS].long(STEPS, INTERVAL_MS, name)
                under_way.add(name)
                said = await run_client(client, LEGACY, front.url(), tool, arguments)
                under_way.discard(name)
                if said.ending == "result":
                    assert_whole(front, said, STEPS, done)
                    assert_ran_once(fleet.ports, name)
                    completed.append(name)
                else:
                    assert_was_refused(said, name)
                    refused.append(said.error)

        def assert_was_refused(said, name):
            report = f"{said}\n{front.report()}"
            assert said.progress == [] and HONEST_REFUSAL in said.error, report
            assert [stack.counters(port, name)["started"] for port in fleet.ports] == [0, 0, 0], report

        async def roll():
            nonlocal rolling
            try:
                for sidecar in fleet.sidecars:
                    await eventually(lambda: fleet.is_busy(sidecar, under_way), START_LIMIT)
                    session = await open_session(sidecar.port)
                    unused = await open_session(sidecar.port)
                    await by_signal(sidecar)
                    await assert_goes_on(session, sidecar, "moved", is_there=False)
                    await asyncio.to_thread(sidecar.begin)
                    await together(*(balancer.knows(sidecar.port, "ready") for balancer in fleet.balancers))
                    await assert_goes_on(session, sidecar, "stays", is_there=False)
                    # The server itself was never restarted.
                    await assert_goes_on(unused, sidecar, "unused", is_there=True)
                await restart_balancers(fleet, front)
            finally:
                rolling = False

        async def assert_goes_on(session, sidecar, when, is_there):
            for n, balancer in enumerate(fleet.balancers):
                name = f"{key}-{sidecar.port}-{when}-{n}"
                quick = await ask(balancer.port, body=call(1, "quick", key=name), **session)
                assert "result" in (await quick.messages())[-1], quick.status
                assert (fleet.ran_at(name) is sidecar) == is_there

        await together(roll(), *(one_after_the_other(lane) for lane in range(lanes)))
        print(f"{len(completed)} calls, {len(front.resumes)} resumes, refused: {refused}")


async def test_a_session_of_a_killed_sidecar_goes_on_at_another(fleet, key):
    fleet = await fleet(WITH_SESSIONS, REPLICA__WRAP_SESSIONS="true")
    one, other = fleet.balancers
    session = await open_session(one.port)
    quick = await ask(one.port, body=call(1, "quick", key=key), **session)
    assert "result" in (await quick.messages())[-1]
    # The same at both.
    quick = await ask(other.port, body=call(2, "quick", key=f"{key}-2"), **session)
    assert "result" in (await quick.messages())[-1]
    killed = fleet.ran_at(key)
    assert fleet.ran_at(f"{key}-2") is killed
    # Without a balancer this would depend on chance.
    [another, _] = fleet.others(killed)
    assert (await ask(another.port, body=call(3, "quick", key=f"{key}-3"), **session)).status == 404
    killed.kill()
    for n, balancer in enumerate(fleet.balancers, start=4):
        quick = await ask(balancer.port, body=call(n, "quick", key=f"{key}-{n}"), **session)
        assert quick.status == 200 and "result" in (await quick.messages())[-1]
    # The same at both.
    assert fleet.ran_at(f"{key}-4") is fleet.ran_at(f"{key}-5") is not killed
    assert [stack.counters(port, f"{key}-3")["started"] for port in fleet.ports] == [0, 0, 0]


class Holding(Front):
    """Keeps tool calls until `released` is set."""

    def __init__(self, balancers):
        super().__init__(balancers)
        self.released = asyncio.Event()

    async def _send(self, exchange, raw, connection):
        if exchange.is_call:
            await self.released.wait()
        await super()._send(exchange, raw, connection)


async def owner_of(sidecar):
    """The prefix of the sidecar's session names."""
    return (await (await ask(sidecar.port, method="GET", path="/.well-known/mcp-resume")).json())["owner"]


@pytest.mark.parametrize("client", LIGHT[:3])
async def test_a_stock_client_whose_sidecar_has_left_goes_on_in_its_session(client, fleet, key):
    fleet = await fleet(WITH_SESSIONS, REPLICA__WRAP_SESSIONS="true")
    owners = {await owner_of(sidecar): sidecar for sidecar in fleet.sidecars}
    async with Holding(fleet.balancers) as front:
        quick = client, LEGACY, front.url(), "quick", {"key": key}
        async with Client(*quick) as under_way:
            await eventually(lambda: front.calls, START_LIMIT)
            session = front.calls[0].headers["mcp-session-id"]
            left = owners[session.split("~")[0]]
            await by_signal(left)
            front.released.set()
            said = await under_way.finish()
        assert said.result == "quick", f"{said}\n{front.report()}"
        assert [call.status for call in front.calls] == [200], front.report()
        assert front.calls[0].headers["mcp-session-id"] == session
        assert fleet.ran_at(key) is not left
        assert_ran_once(fleet.ports, key)


# Without a shared store only the owner has a stream.


class ByTransport(Wire):
    """Resumes by Last-Event-ID alone."""

    def reconnect(self):
        return self.reconnect_by_transport()


@pytest.mark.parametrize("client", LIGHT[:3])
async def test_memory_stock_clients_come_back_to_the_owner(client, fleet, key):
    fleet = await fleet(**MEMORY)
    tool, arguments, done = SERVERS[SESSIONLESS[LEGACY]].long(8, INTERVAL_MS, key)
    async with Front(fleet.balancers, Cut("event", 1, times=4, resumes=True)) as front:
        said = await run_client(client, LEGACY, front.url(), tool, arguments)
        assert_whole(front, said, 8, done)
        assert front.cuts == 4, front.report()
        assert_ran_once(fleet.ports, key)


@pytest.mark.parametrize("dialect", [ByTransport, StreamUrl])
async def test_memory_a_place_or_a_stream_url_leads_to_the_owner(dialect, fleet, key):
    fleet = await fleet(**MEMORY)
    async with Front(fleet.balancers, Cut("event", 1, times=4, resumes=True)) as front:
        client = await dialect.connect(front.port)
        await client.call(call(7, "long", steps=8, interval_ms=INTERVAL_MS, key=key))
        assert_got(client, 8, "done 8")
        assert front.cuts == 4, front.report()
        assert_ran_once(fleet.ports, key)


async def test_memory_a_resume_token_leads_to_the_owner(fleet, key):
    fleet = await fleet(**MEMORY, **SLICES)
    async with Front(fleet.balancers) as front:
        client = await ResumeTokens.connect(front.port)
        body = call(7, "long", steps=10, interval_ms=300, key=key)
        token = None
        for n in range(20):
            await client.one(client.again(f"7-{n}", token, body))
            token = client.next_token()
            if token is None:
                break
            # From now on the call can be distinguished from others.
            front.cut = Cut("event", 1, times=3)
        assert_got(client, 10, "done 10")
        assert client.slices and front.cuts == 3, front.report()
        assert_ran_once(fleet.ports, key)


async def test_memory_the_streams_of_a_killed_owner_are_honestly_gone(fleet, key):
    fleet = await fleet(**MEMORY)
    one, other = fleet.balancers
    session, answer = await begin_raw(one.port, key)
    event = await data_event(answer)
    url = answer.headers["link"].split(">")[0].removeprefix("<")
    owner = fleet.ran_at(f"{key}-raw")
    # While the owner lives both balancers find the call.
    answer.reset()
    answer = await resume(other.port, session, event.id)
    assert progress_of(await data_event(answer)) == progress_of(event) + 1
    owner.kill()
    for balancer in fleet.balancers:
        gone = await resume(balancer.port, session, event.id)
        assert gone.status == 200
        [message] = await gone.messages()
        assert (message["id"], message["error"]["code"]) == (1, -32012)
        gone = await ask(balancer.port, method="GET", path=f"/mcp{url}", **session)
        assert gone.status == 200
        [message] = await gone.messages()
        assert (message["id"], message["error"]["code"]) == (1, -32012)
