"""The protocol's own conformance suite, through the proxy and straight to the server, compared check by check."""

import asyncio
import collections
import json
import os
import re

import pytest

from harness import stack
from harness.stack import together

pytestmark = pytest.mark.anyio

SUITE = "node_modules/@modelcontextprotocol/conformance/dist/index.js"
LIMIT = 240.0

SERVER_OF = {"2025-11-25": "servers/conformance-v1.mjs", "2026-07-28": "servers/conformance-v2.mjs"}
POLLING = ["server-sse-priming-event", "server-sse-retry-field", "server-sse-disconnect-resume"]

# The suite reports events as INFO, in as many checks as there were messages; this is no verdict, but better than a failure.
RANK = {"FAILURE": 0, "WARNING": 1, "SKIPPED": 2, "INFO": 2, "SUCCESS": 3}


async def run_suite(port, where, *which):
    """All verdicts of one run, as {(scenario, check, n): status}, where n numbers the checks of one name; `which` has its scenarios."""
    process = await asyncio.create_subprocess_exec(
        *(stack.node22(), SUITE, "server", "--url", f"http://127.0.0.1:{port}/mcp"),
        *(*which, "--output-dir", str(where)),
        cwd=stack.ROOT,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        said, _ = await asyncio.wait_for(process.communicate(), LIMIT)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    # Its exit code is 1 if a check failed; the verdicts have the details.
    assert re.search("=== SUMMARY ===|Test Results:", said.decode()), said.decode()
    return verdicts(where)


def verdicts(where):
    found = {}
    for file in where.glob("server-*/checks.json"):
        # server-SCENARIO-2026-11-21T17-22-35-081Z
        scenario = file.parent.name.removeprefix("server-").rsplit("-", 6)[0]
        numbers = collections.Counter()
        for check in json.loads(file.read_text()):
            if check["status"] == "INFO" and check["id"] not in POLLING:
                continue
            numbers[check["id"]] += 1
            found[scenario, check["id"], numbers[check["id"]]] = check["status"]
    return found


def worse(than, now):
    """The checks with a lower rank than before, with both verdicts."""
    both = {check: (status, now.get(check)) for check, status in than.items()}
    return {check: pair for check, pair in both.items() if RANK.get(pair[1], -1) < RANK[pair[0]]}


def count(run, status="SUCCESS"):
    return sum(found == status for found in run.values())


def polling(run):
    return [run.get(("server-sse-polling", check, 1)) for check in POLLING]


async def compare(start, tmp_path, revision, **settings):
    """The verdicts on the server and on a proxy in front of it."""
    server = start(stack.start_program, ("node", SERVER_OF[revision])).found["port"]
    proxy = start(stack.start_proxy, server, **settings).found["port"]
    direct, through = await together(
        run_suite(server, tmp_path / "direct", "--requirements", revision),
        run_suite(proxy, tmp_path / "through", "--requirements", revision),
    )
    assert worse(direct, through) == {}
    return direct, through


async def test_at_2025_11_25_nothing_is_worse_and_polling_is_better(start, tmp_path):
    """Two of the three checks of polling require an id and a `retry` first; the third requires a close in mid-call, which is not the
    default."""
    direct, through = await compare(start, tmp_path, "2025-11-25")
    assert (count(direct), polling(direct)) == (81, ["WARNING", "WARNING", "INFO"])
    assert (count(through), polling(through)) == (83, ["SUCCESS", "SUCCESS", "INFO"])


async def test_a_longest_connection_passes_all_of_2025_11_25(start, tmp_path):
    _, through = await compare(start, tmp_path, "2025-11-25", DELIVERY__MAX_CONNECTION_SECS=1)
    assert polling(through) == ["SUCCESS"] * 3
    assert (count(through), len(through)) == (84, 84)


async def test_at_2026_07_28_nothing_is_worse(start, tmp_path):
    """A slow response, which the proxy turns into a stream, counts as one success more."""
    direct, through = await compare(start, tmp_path, "2026-07-28")
    assert count(through) >= count(direct) == 132


# The number of checks in each scenario of the extension for tasks, of which the suite skips one.
TASK_SCENARIOS = {
    "tasks-capability-negotiation": 5,
    "tasks-dispatch-and-envelope": 9,
    "tasks-lifecycle": 9,
    "tasks-mrtr-composition": 2,
    "tasks-mrtr-input": 4,
    "tasks-request-headers": 5,
    "tasks-request-state-removal": 3,
    "tasks-required-task-error": 3,
    "tasks-status-notifications": 0,
    "tasks-wire-fields": 4,
}


@pytest.mark.parametrize("scenario", TASK_SCENARIOS)
async def test_a_server_without_tasks_passes_the_scenarios_of_tasks(scenario, servers, start, tmp_path):
    """A tool that must refuse callers without tasks is configured as such; a poll is held more briefly than the suite waits."""
    config = tmp_path / "tasks.toml"
    config.write_text('[tools.failing_job]\ntask = "required"\n')
    settings = {**stack.TASKS, "TASKS__HOLD_SECS": 1}
    proxy = start(stack.start_proxy, servers["tasks"], config=config, **settings).found["port"]
    run = await run_suite(proxy, tmp_path / "run", "--scenario", scenario)
    others = {check: status for check, status in run.items() if status != "SUCCESS"}
    assert (count(run), set(others.values())) == (TASK_SCENARIOS[scenario], set() if count(run) else {"SKIPPED"}), run
