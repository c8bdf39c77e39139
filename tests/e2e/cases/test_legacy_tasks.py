"""Tasks of 2025-11-25 before servers that have none: stock clients that ask for them, and one with VS Code's habits."""

import asyncio
import json

import pytest

from harness import stack
from harness.checks import assert_runs
from harness.raw import ask, open_session
from harness.relay import Cut, Relay
from harness.replicas import Replica
from harness.stack import LEGACY, LEGACY_TASK_CLIENTS, START_LIMIT, Client, counters, eventually, run_client, together

pytestmark = pytest.mark.anyio

OFFER = {"TASKS__LEGACY_TOOLS": "*"}
RELATED = "io.modelcontextprotocol/related-task"
# Servers without tasks. The TypeScript SDK says of each tool that it is none.
SERVERS = ["python-mcp1", "fastmcp", "typescript-v1"]
LEASE_SECS = 2
AWAY_SECS = 2


@pytest.fixture
def before(start, servers):
    """Starts a proxy that offers tasks in front of a server, and returns its port."""

    async def run(server, **settings):
        return (await asyncio.to_thread(start, stack.start_proxy, servers[server], **OFFER, **settings)).found["port"]

    return run


def calling(client, relay, tool, **arguments):
    return Client(client, LEGACY, relay.url(), tool, arguments, then=True)


def report(relay, said):
    return "\n".join([relay.report(), *(str(line) for line in said.lines), *said.noise])


def made(said):
    """The IDs of the tasks of a client, in their order."""
    return [line["id"] for _, line in said.lines if line["event"] == "task"]


class Caller:
    """A client of bare requests in one session."""

    def __init__(self, port, headers):
        self.port, self.headers, self._last = port, headers, 100

    @classmethod
    async def open(cls, port):
        return cls(port, await open_session(port, capabilities={"elicitation": {}}))

    def at(self, port):
        """The same client at another replica."""
        return Caller(port, self.headers)

    async def send(self, method, **params):
        self._last += 1
        body = {"jsonrpc": "2.0", "id": self._last, "method": method, "params": params}
        return await ask(self.port, body=body, **self.headers)

    async def request(self, method, **params):
        """The response to a request, or None if the response ends without it."""
        answer = await self.send(method, **params)
        found = [message for message in await answer.messages() if "method" not in message]
        return found[0] if found else None

    async def begin(self, tool, **arguments):
        meta = {"progressToken": 1}
        message = await self.request("tools/call", name=tool, arguments=arguments, task={}, _meta=meta)
        return message["result"]["task"]["taskId"]

    async def status(self, task):
        message = await self.request("tasks/get", taskId=task)
        return message.get("result", {}).get("status") or message["error"]["code"]

    async def settled(self, task):
        async with asyncio.timeout(START_LIMIT):
            while (status := await self.status(task)) in ("working", "input_required"):
                await asyncio.sleep(0.1)
        return status

    async def listen(self, **headers):
        return await ask(self.port, method="GET", accept="text/event-stream", **self.headers, **headers)

    async def answer(self, question):
        body = {"jsonrpc": "2.0", "id": question["id"], "result": {"action": "accept", "content": {"word": "elicited"}}}
        answer = await ask(self.port, body=body, **self.headers)
        await answer.body()
        return answer.status


async def question_on(answer, limit=START_LIMIT):
    """The next question on a stream, with the event ID of it; None if there is none in time."""
    try:
        async with asyncio.timeout(limit):
            while event := await answer.event():
                if event.data and json.loads(event.data).get("method") == "elicitation/create":
                    return json.loads(event.data)
    except TimeoutError:
        pass
    return None


@pytest.mark.each_value
@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("client", LEGACY_TASK_CLIENTS)
async def test_calls_are_tasks_and_end_as_they_would_have(client, server, before, servers, key):
    """A result, a question, a tool's error, and several at once."""
    async with (
        Relay(await before(server)) as relay,
        calling(client, relay, "long", steps=3, interval_ms=300, key=key) as running,
    ):
        running.begin("ask", {"kind": "elicitation", "delay_ms": 300, "key": f"{key}-ask"})
        running.begin("long", {"steps": "none", "key": f"{key}-bad"})
        runs = [f"{key}-{n}" for n in range(3)]
        calls = [{"tool": "long", "args": {"steps": n + 1, "interval_ms": 200, "key": run}} for n, run in enumerate(runs)]
        running.ask(at_once=calls)
        assert await running.outcome(6), report(relay, running.transcript)
        said = await running.finish()
        kinds = [kind for kind, _ in said.outcomes]
        texts = [text for _, text in said.outcomes]
        assert kinds == ["result", "result", "error", *["result"] * 4], report(relay, said)
        assert texts[:2] + texts[3:6] == ["done 3", "answered elicited", "done 1", "done 2", "done 3"], report(relay, said)
        assert said.asked == ["elicitation"], report(relay, said)
        assert len(set(made(said))) == len(relay.calls) == 6, report(relay, said)
    for run in (key, f"{key}-ask", *runs):
        assert_runs(servers[server], run)


async def test_progress_arrives_in_order(before, key):
    async with Relay(await before("python-mcp1")) as relay:
        said = await run_client("typescript-v1-tasks", LEGACY, relay.url(), "long", {"steps": 4, "interval_ms": 200, "key": key})
        assert (said.progress, said.result) == ([1, 2, 3, 4], "done 4"), report(relay, said)


@pytest.mark.parametrize("client", ["typescript-v1-tasks", "ext-tasks-legacy"])
async def test_a_cancelled_task_is_cancelled_at_the_server(client, before, servers, key):
    async with Relay(await before("python-mcp1")) as relay, calling(client, relay, "quick", key=f"{key}-quick") as running:
        running.ask(cancel={"tool": "long", "args": {"steps": 100, "interval_ms": 200, "key": key}})
        _, message = await running.outcome(1)
        assert "cancel" in message, report(relay, running.transcript)

        def counted():
            return counters(servers["python-mcp1"], key)

        def told():
            return f"{counted()}\n{report(relay, running.transcript)}"

        await eventually(lambda: counted()["cancelled"] == 1, report=told)


async def test_the_outcome_of_a_cancelled_task_is_an_error(before, key):
    """Whether its client asks for it before or after the cancel."""
    caller = await Caller.open(await before("python-mcp1"))
    task = await caller.begin("long", steps=100, interval_ms=200, key=key)
    reading = asyncio.create_task(caller.request("tasks/result", taskId=task))
    await asyncio.sleep(0.2)
    assert (await caller.request("tasks/cancel", taskId=task))["result"]["status"] == "cancelled"
    for message in (await reading, await caller.request("tasks/result", taskId=task)):
        assert message is not None, "the response ended without a message"
        assert "error" in message


FAULTS = {
    "poll": Cut("request", on="poll"),
    "standalone": Cut("event", 1, on="standalone"),
    "away": Cut("event", 1, on="standalone", away=AWAY_SECS),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_vs_code_survives(fault, before, servers, key):
    """A lost poll; and the standalone stream cut right behind a message, with the question to come or outstanding."""
    async with Relay(await before("python-mcp1"), FAULTS[fault]) as relay:
        arguments = {"kind": "elicitation", "delay_ms": 1500, "key": key}
        said = await run_client("polling", LEGACY, relay.url(), "ask", arguments)
        assert (said.result, said.asked) == ("answered elicited", ["elicitation"]), report(relay, said)
        assert (relay.cuts, len(made(said))) == (1, 1), report(relay, said)
    assert_runs(servers["python-mcp1"], key)


async def test_a_handle_that_is_cut_is_given_again(before, servers, key):
    caller = await Caller.open(await before("python-mcp1"))
    async with Relay(caller.port, Cut("request")) as relay:
        there = caller.at(relay.port)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await there.begin("long", steps=2, interval_ms=300, key=key)
        there._last -= 1
        task = await there.begin("long", steps=2, interval_ms=300, key=key)
    assert await caller.settled(task) == "completed"
    assert_runs(servers["python-mcp1"], key)


async def test_a_result_that_is_cut_is_resumed_and_arrives_once(before, servers, key):
    async with Relay(await before("python-mcp1")) as relay:
        caller = await Caller.open(relay.port)
        task = await caller.begin("long", steps=6, interval_ms=200, key=key)
        answer = await caller.send("tasks/result", taskId=task)
        seen, last = [], None
        while len(seen) < 2:
            event = await answer.event()
            last = event.id or last
            seen += [json.loads(event.data)] if event.data else []
        answer.reset()
        back = await caller.listen(last_event_id=last)
        seen += await back.messages()
        numbers = [message["params"]["progress"] for message in seen if "method" in message]
        assert numbers == sorted(set(numbers)), seen
        [outcome] = [message for message in seen if "result" in message]
        assert outcome["result"]["_meta"][RELATED] == {"taskId": task}


@pytest.mark.parametrize("by", ["standalone", "result"])
async def test_a_question_outlives_the_standalone_stream_that_had_it(by, before, servers, key):
    """The stream is cut with the question unanswered, and not resumed: the client asks anew, or reads the task."""
    caller = await Caller.open(await before("python-mcp1"))
    first = await caller.listen()
    await first.event()
    task = await caller.begin("ask", kind="elicitation", key=key)
    assert await question_on(first)
    first.reset()
    await asyncio.sleep(0.2)
    again = await (caller.listen() if by == "standalone" else caller.send("tasks/result", taskId=task))
    question = await question_on(again)
    assert question, "the question is lost"
    assert await caller.answer(question) == 202
    assert await caller.settled(task) == "completed"
    assert_runs(servers["python-mcp1"], key)


async def test_a_question_read_by_result_is_not_asked_again_on_the_standalone_stream(before, key):
    """A break of the network cuts both streams, and the client resumes both, that of the session first."""
    caller = await Caller.open(await before("python-mcp1"))
    standalone = await caller.listen()
    primed = await standalone.event()
    task = await caller.begin("ask", kind="elicitation", delay_ms=600, key=key)
    reading = await caller.send("tasks/result", taskId=task)
    event = await reading.event()
    while '"elicitation/create"' not in event.data:
        event = await reading.event()
    standalone.reset()
    reading.reset()
    await asyncio.sleep(0.2)
    resumed = await caller.listen(last_event_id=primed.id)
    await caller.listen(last_event_id=event.id)
    assert await question_on(resumed, 1) is None, "the question is asked twice"


@pytest.mark.parametrize("client", ["typescript-v1-tasks", "polling"])
async def test_calls_in_a_session_that_outlives_the_proxy(client, start, servers, key):
    """Without a store: the server has the session still, and the client the list of tools."""
    proxy = await asyncio.to_thread(Replica, start, servers["python-mcp1"], **OFFER)
    async with Relay(proxy.port) as relay, calling(client, relay, "quick", key=f"{key}-1") as running:
        assert await running.outcome(0) == ("result", "quick")
        proxy.kill()
        await asyncio.to_thread(proxy.begin)
        await proxy.until(ready=True)
        running.begin("quick", {"key": f"{key}-2"})
        assert await running.outcome(1) == ("result", "quick"), report(relay, running.transcript)
        await running.finish()


async def test_outcomes_on_disk_outlive_the_proxy(start, servers, key, tmp_path):
    store = {"STORE__KIND": "disk", "STORE__PATH": tmp_path / "store"}
    proxy = await asyncio.to_thread(Replica, start, servers["python-mcp1"], **OFFER, **store)
    caller = await Caller.open(proxy.port)
    ended = await caller.begin("long", steps=1, interval_ms=100, key=f"{key}-ended")
    assert await caller.settled(ended) == "completed"
    running = await caller.begin("long", steps=600, interval_ms=100, key=key)
    proxy.kill()
    await asyncio.to_thread(proxy.begin)
    await proxy.until(ready=True)
    assert [await caller.settled(task) for task in (ended, running)] == ["completed", "failed"]
    outcomes = [await caller.request("tasks/result", taskId=task) for task in (ended, running)]
    assert outcomes[0]["result"]["content"][0]["text"] == "done 1"
    assert outcomes[1]["error"]["code"] == -32011


@pytest.fixture
def replicas(redis, start, servers, key):
    async def run():
        shared = {"STORE__KIND": "redis", "STORE__URL": redis, "STORE__PREFIX": key, "REPLICA__LEASE_SECS": LEASE_SECS}
        names = ("first", "second")
        begun = (
            asyncio.to_thread(Replica, start, servers["python-mcp1"], REPLICA__NAME=name, **OFFER, **shared) for name in names
        )
        both = await together(*begun)
        await together(*(replica.until(ready=True) for replica in both))
        return both

    return run


async def test_every_replica_serves_a_task(replicas, servers, key):
    owner, other = await replicas()
    caller = await Caller.open(owner.port)
    there = caller.at(other.port)
    task = await caller.begin("long", steps=4, interval_ms=200, key=key)
    assert await there.status(task) == "working"
    outcome = await there.request("tasks/result", taskId=task)
    assert outcome["result"]["content"][0]["text"] == "done 4"
    long = await caller.begin("long", steps=600, interval_ms=100, key=f"{key}-long")
    cancelled = await there.request("tasks/cancel", taskId=long)
    assert cancelled.get("result", {}).get("status") == "cancelled", cancelled
    assert await caller.status(long) == "cancelled"


async def test_the_tasks_of_a_replica_that_is_killed(replicas, key):
    owner, other = await replicas()
    caller = await Caller.open(owner.port)
    there = caller.at(other.port)
    ended = await caller.begin("long", steps=1, interval_ms=100, key=f"{key}-ended")
    assert await caller.settled(ended) == "completed"
    running = await caller.begin("long", steps=600, interval_ms=100, key=key)
    owner.kill()
    assert await there.settled(running) == "failed"
    assert (await there.request("tasks/result", taskId=ended))["result"]["content"][0]["text"] == "done 1"
    assert (await there.request("tasks/result", taskId=running))["error"]["code"] == -32011


async def test_a_server_with_tasks_of_its_own_stays_as_it_is(before, servers):
    """Capabilities and tools are the server's."""
    with_offer = await before("everything")
    found = []
    for port in (servers["everything"], with_offer):
        caller = await Caller.open(port)
        found.append((await caller.request("tools/list"))["result"])
    assert found[0] == found[1]
