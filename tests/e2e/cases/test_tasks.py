"""Tasks before servers that have none: stock clients that declare them, the servers' SDKs, and everything else as without."""

import asyncio
import os
import re
import signal

import pytest

from harness import stack, stdio, tasks
from harness.checks import assert_runs, assert_whole
from harness.record import Recorder, render
from harness.relay import Relay
from harness.stack import MODERN, TASK_CLIENTS, Client, eventually, together
from harness.tasks import handles, states

pytestmark = pytest.mark.anyio


def calling(client, relay, tool, **arguments):
    """A client that makes this call, and then those of `begin` and `ask`."""
    return Client(client, MODERN, relay.url(), tool, arguments, then=True)


def told(said):
    """What a client told, without the text of errors."""
    return [(line["event"], line.get("text")) for _, line in said.lines if line["event"] in ("result", "error", "asked")]


@pytest.mark.parametrize("client", TASK_CLIENTS)
async def test_a_task_ends_as_its_call_would_have(client, servers, proxies, key):
    tools = ["measure", "failing_job", "protocol_error_job", "greet"]
    async with Relay(proxies["tasks"]) as relay, calling(client, relay, "slow_compute", seconds=2, key=key) as running:
        for tool in tools:
            running.begin(tool, {"key": f"{key}-{tool}", **({"name": "Ada"} if tool == "greet" else {})})
        assert await running.outcome(4), relay.report()
        said = await running.finish()
        results = [("result", " after 2 s"), ("result", "measured"), ("error", None), ("error", None), ("result", "Hello, Ada!")]
        assert told(said) == results, said
        assert "The job has failed." in said.outcomes[2][1]
        assert "The job has panicked." in said.outcomes[3][1]
        structured = [line.get("structured") for _, line in said.lines if line.get("text") == "measured"]
        assert structured == [{"size": 5}]
        # Each but the last, which was quick, was a task of its own.
        assert len(set(handles(relay))) == len(relay.calls) - 1 == len(tools), relay.report()
        assert relay.polls
    for tool in ("measure", "failing_job", "greet"):
        assert_runs(servers["tasks"], f"{key}-{tool}")
    assert_runs(servers["tasks"], f"{key}-protocol_error_job", finished=0)
    assert_runs(servers["tasks"], key)


@pytest.mark.parametrize("client", TASK_CLIENTS)
async def test_a_question_in_a_task_is_asked_once(client, servers, proxies, key):
    """One, two at once, and one before there is a task. The server's tool runs once more with the answers."""
    others = ["multi_input", "test_tool_with_task"]
    async with Relay(proxies["tasks"]) as relay, calling(client, relay, "confirm_delete", key=key) as running:
        for tool in others:
            running.begin(tool, {"key": f"{key}-{tool}"})
        assert await running.outcome(2), relay.report()
        asked = ("asked", None)
        first, second = [asked, ("result", "Deleted.")], [asked, asked, ("result", "elicited, 5")]
        assert told(await running.finish()) == [*first, *second, asked, ("result", "Hello, elicited!")], relay.report()
        assert len(set(handles(relay))) == 3
        # The call that was asked before it became a task was made again by its client.
        assert len(relay.calls) == 4
    for run in (key, *(f"{key}-{tool}" for tool in others)):
        assert_runs(servers["tasks"], run, started=2, finished=2)


@pytest.mark.parametrize("client", TASK_CLIENTS)
async def test_several_tasks_at_once_do_not_mix(client, servers, proxies, key):
    labels = [str(n) for n in range(6)]
    async with Relay(proxies["tasks"]) as relay, calling(client, relay, "greet", name="Ada") as running:
        arguments = [{"seconds": 1 + n % 2, "label": label, "key": f"{key}-{label}"} for n, label in enumerate(labels)]
        running.ask(at_once=[{"tool": "slow_compute", "args": args} for args in arguments])
        assert await running.outcome(len(labels)), relay.report()
        said = await running.finish()
        results = [f"{args['label']} after {args['seconds']} s" for args in arguments]
        assert [text for _, text in told(said)][1 : len(labels) + 1] == results, relay.report()
        assert len(set(handles(relay))) == len(labels)
    for label in labels:
        assert_runs(servers["tasks"], f"{key}-{label}")


@pytest.mark.parametrize("client", TASK_CLIENTS)
async def test_a_cancelled_task_is_cancelled_at_the_server(client, servers, proxies, key):
    async with Relay(proxies["tasks"]) as relay, calling(client, relay, "greet", name="Ada") as running:
        running.ask(cancel={"tool": "slow_compute", "args": {"seconds": 60, "key": key}})
        _, message = await running.outcome(1)
        assert "cancel" in message, relay.report()
        await eventually(lambda: stack.counters(servers["tasks"], key)["cancelled"] == 1)
        assert_runs(servers["tasks"], key, finished=0, cancelled=1)
        [task] = handles(relay)
        assert (await tasks.poll(proxies["tasks"], task))["status"] == "cancelled"
        await running.finish()


INSPECTED = [
    ("slow_compute", {"seconds": 2, "label": "it"}, 0, "it after 2 s"),
    ("measure", {}, 0, '"structuredContent":{"size":5}'),
    ("failing_job", {}, 5, "The job has failed."),
    ("protocol_error_job", {}, 1, "The job has panicked."),
]


@pytest.mark.parametrize("tool, arguments, status, words", INSPECTED, ids=[tool for tool, *_ in INSPECTED])
async def test_the_inspector_gets_the_outcome(tool, arguments, status, words, servers, proxies, key, tmp_path):
    async with Relay(proxies["tasks"]) as relay:
        ended, said = await tasks.inspect(relay.url(), tool, {**arguments, "key": key}, tmp_path)
        assert (ended, words in said) == (status, True), said + relay.report()
        assert len(handles(relay)) == 1, relay.report()
    assert_runs(servers["tasks"], key, finished=int(tool != "protocol_error_job"))


@pytest.fixture
def before(start, servers):
    """Starts a proxy for one test in front of a server, named or at a port; returns the ports of both."""

    async def run(server, **settings):
        port = server if isinstance(server, int) else servers.get(server)
        if port is None:
            port = (await asyncio.to_thread(start, stack.start_server, server)).found["port"]
        proxy = await asyncio.to_thread(start, stack.start_proxy, port, **{**stack.TASKS, **settings})
        return port, proxy.found["port"]

    return run


PLAIN = ["typescript-v2", "python-mcp2", "fastmcp", "rmcp"]


@pytest.mark.parametrize("server", PLAIN)
async def test_every_sdk_has_tasks_behind_the_proxy(server, before, key):
    """ext-tasks fails a task whose result lacks `resultType`, as rmcp's does. The server's progress is the text of the task."""
    port, proxy = await before(server)

    async def through_ext_tasks():
        async with Relay(proxy) as relay:
            arguments = {"steps": 4, "interval_ms": 400, "key": key}
            said = await stack.run_client("ext-tasks", MODERN, relay.url(), "long", arguments)
            assert said.result == "done 4", f"{said}\n{relay.report()}"
            assert len(handles(relay)) == 1
        assert_runs(port, key)

    async def with_progress():
        arguments = {"steps": 4, "interval_ms": 800, "key": f"{key}-progress"}
        task = (await tasks.begin(proxy, "long", **arguments))["taskId"]
        async with asyncio.timeout(stack.START_LIMIT):
            while "statusMessage" not in (state := await tasks.poll(proxy, task)):
                await asyncio.sleep(0.05)
        assert re.fullmatch(r"([123]) of 4: step \1", state["statusMessage"]), state
        assert tasks.text_of(await tasks.settled(proxy, task)) == "done 4"
        assert_runs(port, f"{key}-progress")

    await together(through_ext_tasks(), with_progress())


@pytest.mark.parametrize("server", [server for server in PLAIN if server != "typescript-v2"])
async def test_every_sdk_can_ask_in_a_task(server, before, key):
    port, proxy = await before(server)
    async with Relay(proxy) as relay:
        said = await stack.run_client("rmcp-tasks", MODERN, relay.url(), "confirm", {"key": key})
        assert (said.result, said.asked) == ("answered elicited", ["elicitation"]), f"{said}\n{relay.report()}"
        assert len(handles(relay)) == 1
        assert any(state["status"] == "input_required" for state in states(relay)), relay.report()
    assert_runs(port, key)


@pytest.mark.parametrize("server, client", [("python-mcp2", "rmcp-tasks"), ("rmcp", "ext-tasks")])
async def test_a_server_on_stdio_has_tasks_too(server, client, start, key):
    proxy = await asyncio.to_thread(start, stdio.start_proxy, server, **stdio.SHARED, **stack.TASKS)
    async with Relay(proxy.found["port"]) as relay:
        said = await stack.run_client(client, MODERN, relay.url(), "long", {"steps": 4, "interval_ms": 400, "key": key})
        assert said.result == "done 4", f"{said}\n{relay.report()}"
        assert len(handles(relay)) == 1
    stdio.assert_runs(key)


async def test_a_task_whose_server_on_stdio_is_killed_has_failed(start, key):
    proxy = await asyncio.to_thread(start, stdio.start_proxy, "rmcp", **stdio.SHARED, **stack.TASKS)
    port = proxy.found["port"]
    task = (await tasks.begin(port, "long", steps=600, interval_ms=100, key=key))["taskId"]
    for child in stdio.children(proxy.pid):
        os.kill(child, signal.SIGKILL)
    assert (await tasks.settled(port, task))["error"]["code"] == -32010
    stdio.assert_runs(key, finished=0)


async def test_a_server_of_older_revisions_answers_clients_with_tasks_as_ever(before, key):
    port, proxy = await before("typescript-v1")
    async with Relay(proxy) as relay:
        arguments = {"steps": 4, "interval_ms": 300, "key": key}
        said = await stack.run_client("fastmcp-tasks", MODERN, relay.url(), "long", arguments)
        assert_whole(relay, said, 4, "done 4")
        assert said.lines[0][1]["protocol"] == "2025-11-25"
        assert handles(relay) == []
    assert_runs(port, key)


@pytest.mark.parametrize("client", TASK_CLIENTS)
async def test_an_outcome_too_large_for_an_event_arrives(client, servers, proxies, key):
    """The Python SDK refuses events of more than a mebibyte."""
    size = 1_500_000
    async with Relay(proxies["tasks"]) as relay:
        said = await stack.run_client(client, MODERN, relay.url(), "measure", {"size": size, "key": key})
        assert said.result == "measured".ljust(size, "."), f"{said.error}\n{relay.report()}"
        assert len(handles(relay)) == 1
    assert_runs(servers["tasks"], key)


async def test_a_call_beyond_the_limit_of_running_tasks_has_an_ordinary_response(before, key):
    """So has every call without a task: nothing is refused."""
    port, proxy = await before("tasks", LIMITS__TASKS_PER_PRINCIPAL=2)
    held = [(await tasks.begin(proxy, "until_open", gate=key, key=f"{key}-{n}"))["taskId"] for n in (1, 2)]
    # Longer than the time after which a call becomes a task.
    beyond = {"name": "slow_compute", "arguments": {"seconds": 2, "label": "it", "key": f"{key}-beyond"}}
    result = (await tasks.answer(proxy, "tools/call", **beyond))["result"]
    assert (result["resultType"], result["content"][0]["text"]) == ("complete", "it after 2 s")
    stack.open_gate(port, key)
    for task in held:
        assert tasks.text_of(await tasks.settled(proxy, task)).startswith("done ")
    again = await tasks.begin(proxy, "slow_compute", seconds=2, label="it", key=f"{key}-again")
    assert tasks.text_of(await tasks.settled(proxy, again["taskId"])) == "it after 2 s"
    for run in (f"{key}-1", f"{key}-2", f"{key}-beyond", f"{key}-again"):
        assert_runs(port, run)


async def recorded(port, script):
    """The bytes of these exchanges, one after the other, without the differences between two runs."""
    async with Recorder(port) as recorder:
        for method, params in script:
            await (await tasks.send(recorder.port, method, **params)).body()
        text = await render(recorder.kept, [method for method, _ in script])
    return re.sub(r"[0-9a-f]{32}", "key", text)


async def compared(before, server, script):
    """Records a script before proxies with and without tasks; both must be the same, which is returned."""
    proxies = [await before(server, TASKS__ENABLED=enabled) for enabled in ("true", "false")]
    with_tasks, without = await together(*(recorded(proxy, script) for _, proxy in proxies))
    assert with_tasks == without
    return with_tasks


def call(tool, declares, **arguments):
    return "tools/call", {"name": tool, "arguments": arguments, "declares": declares}


@pytest.mark.parametrize("accept", ["application/json, text/event-stream", "application/json"])
async def test_a_client_that_does_not_declare_tasks_notices_nothing(accept, before, key):
    slow = call("slow_compute", False, seconds=2, label="plain", key=key)
    script = [call("greet", False, name="Ada"), slow, call("failing_job", False), call("protocol_error_job", False)]
    script += [call("confirm_delete", False), ("tools/list", {"declares": False})]
    text = await compared(before, "tasks", [(method, {**params, "accept": accept}) for method, params in script])
    assert "plain after 2 s" in text
    assert '"resultType":"task"' not in text


async def test_quick_calls_of_a_client_that_declares_tasks_are_as_without(before):
    script = [call("greet", True, name="Ada"), call("test_tool_with_task", True), ("tools/list", {})]
    text = await compared(before, "tasks", script)
    assert "Hello, Ada!" in text
    assert '"resultType":"input_required"' in text


async def test_tasks_of_the_server_itself_are_passed(before):
    """Byte for byte: the answer that offers tasks, the handle, and each request about it."""
    own = {"taskId": "own-1"}
    script = [("server/discover", {}), call("build", True, target="all"), ("tasks/get", own)]
    script += [("tasks/update", {**own, "inputResponses": {"q": {"action": "decline"}}}), ("tasks/cancel", own)]
    script += [("tasks/get", {**own, "declares": False}), ("tasks/result", own), ("tasks/list", {})]
    script.append(("subscriptions/listen", {"notifications": {"taskIds": ["own-1"]}}))
    async with tasks.OwnTasks() as server:
        assert (await compared(before, server.port, script)).count('"taskId": "own-1"') >= 5
