"""`mcp-resume check` against real servers: its findings about each, and its verdict."""

import asyncio
import json

import pytest

from harness import stack
from harness.raw import ask, call, open_session
from harness.restarts import Restarted

pytestmark = pytest.mark.anyio

LEGACY = ["2025-11-25", "2025-06-18", "2025-03-26"]
MODERN = "2026-07-28"


async def check(port, *arguments):
    """The exit code and the report of a check of 127.0.0.1:`port`."""
    url = f"http://127.0.0.1:{port}/mcp"
    command = [stack.proxy_binary(), "check", "--upstream", url, "--json", *arguments]
    process = await asyncio.create_subprocess_exec(
        *command,
        env=stack.clean_environment(),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), stack.START_LIMIT)
    assert out, err.decode()
    return process.returncode, json.loads(out)


def tool(server, key):
    """The flags with which the check runs the server's long tool."""
    name, arguments, _ = stack.SERVERS[server].long(4, 250, key)
    return "--tool", name, "--arguments", json.dumps(arguments)


# The properties of each server: sessions, form of its responses, its GET stream, revisions of the modern era, Host checked.
KINDS = {
    "typescript-v1": (True, "event_stream", "stream", None, False),
    "typescript-v1-stateless": (False, "event_stream", "refused", None, False),
    "typescript-v1-json": (True, "json", "stream", None, False),
    "python-mcp1": (True, "event_stream", "stream", None, True),
    "python-mcp2": (True, "event_stream", "stream", ["2026-07-28"], True),
    "fastmcp": (True, "event_stream", "stream", ["2026-07-28"], False),
    "typescript-v2": (False, "event_stream", "refused", ["2026-07-28"], False),
}


@pytest.mark.parametrize("server", KINDS)
async def test_a_server_without_ids_cannot_resume_and_is_known_for_what_it_is(server, servers, key):
    code, report = await check(servers[server], *tool(server, key))
    assert (code, report["verdict"]) == (0, "cannot_resume")
    facts = report["facts"]
    legacy, modern = facts["legacy"], facts["modern"]
    sessions, form, standalone, revisions, host_checked = KINDS[server]
    assert legacy["revisions"] == LEGACY
    assert (legacy["session"], legacy["answers"], legacy["standalone"]["kind"]) == (sessions, form, standalone)
    assert modern and modern["revisions"] == revisions if revisions else modern is None
    assert (facts["foreign_host"]["kind"] == "refused") == host_checked
    assert facts["tool"]["outcome"] == "result"
    assert facts["resumption"] == {"finished": None, "running": None, "later": None}
    # A server of both eras needs no translation; one without sessions gets tasks by the default.
    bridged = [len([line for line in report[part] if "bridge." in line]) for part in ("adds", "clients", "warnings")]
    assert bridged == ([0, 0, 0] if revisions else [0, 1, 0] if sessions else [1, 1, 0]), report
    runs = stack.counters(servers[server], key)
    assert runs["started"] == 1, "a tool whose answer cannot be resumed is not cut"


@pytest.mark.parametrize("server", KINDS)
async def test_what_the_report_promises_is_what_serve_does(server, start, key):
    """Which clients can use the server, and whether a session outlives its restart."""
    restarted = await asyncio.to_thread(Restarted, start, server)
    _, report = await check(restarted.port)
    proxy = await asyncio.to_thread(start, stack.start_proxy, restarted.port)
    port = proxy.found["port"]
    session = await open_session(port)
    assert ("mcp_session_id" in session) == report["facts"]["legacy"]["session"]
    meta = {"io.modelcontextprotocol/protocolVersion": MODERN, "io.modelcontextprotocol/clientCapabilities": {}}
    discovery = {"jsonrpc": "2.0", "id": 1, "method": "server/discover", "params": {"_meta": meta}}
    answer = await ask(port, body=discovery, mcp_protocol_version=MODERN, mcp_method="server/discover")
    [found] = await answer.messages()
    excluded = any(line.startswith("a client of 2026-07-28 that has given up") for line in report["clients"])
    is_usable = MODERN in found.get("result", {}).get("supportedVersions", [])
    assert is_usable != excluded, (found, report)
    await restarted.restart()
    again = await ask(port, body=call(2, "quick", key=key), **session)
    revived = any(line.startswith("a session that the server has forgotten") for line in report["adds"])
    is_served = again.status == 200 and any("result" in message for message in await again.messages())
    assert is_served == (revived or "mcp_session_id" not in session), (again.status, report)


async def test_the_reference_server_replays_what_has_ended_and_loses_what_runs(servers, key):
    code, report = await check(servers["everything"], *tool("everything", key))
    assert (code, report["verdict"]) == (0, "resumes_unreliably")
    facts = report["facts"]
    assert facts["legacy"]["primed"]
    assert facts["resumption"]["finished"] == {"outcome": "held"}
    assert facts["resumption"]["running"]["outcome"] == "lost"
    assert facts["resumption"]["later"] == {"outcome": "held"}, "its tools run on without their client"


async def test_without_a_tool_the_reference_server_holds_what_is_tried(servers):
    code, report = await check(servers["everything"])
    assert (code, report["verdict"]) == (0, "resumes")
    assert any("--tool" in line for line in report["unknown"])


async def test_a_server_behind_the_proxy_resumes(proxies, key):
    code, report = await check(proxies["typescript-v1"], *tool("typescript-v1", key))
    assert (code, report["verdict"]) == (0, "resumes")
    held = {"outcome": "held"}
    assert report["facts"]["resumption"] == {"finished": held, "running": held, "later": held}


async def test_a_server_that_wants_credentials_shows_itself_to_those_who_have_them(start):
    port = start(stack.start_server, "typescript-v1", AUTH="secret-token").found["port"]
    code, report = await check(port)
    assert (code, report["verdict"]) == (1, "wants_credentials")
    assert report["facts"]["contact"] == {"kind": "refused", "status": 401, "scheme": "Bearer"}
    code, report = await check(port, "--header", "Authorization: Bearer secret-token")
    assert (code, report["verdict"]) == (0, "cannot_resume")
    assert report["facts"]["anonymous"] == {"kind": "refused", "status": 401, "scheme": "Bearer"}
    assert "secret-token" not in json.dumps(report)


async def test_the_admin_listener_is_no_mcp(start, servers):
    admin = start(stack.start_proxy, servers["typescript-v1"]).found["admin"]
    code, report = await check(admin)
    assert (code, report["verdict"]) == (1, "no_mcp")


async def test_a_server_that_is_gone_is_unreachable(start):
    process = start(stack.start_server, "typescript-v1")
    process.kill()
    code, report = await check(process.found["port"])
    assert (code, report["verdict"]) == (1, "unreachable")


async def test_a_server_that_pings_and_ends_the_session_without_an_answer(start):
    server = await asyncio.to_thread(start, stack.start_idle_playwright, PAGE_SECS="1")
    tool = ("--tool", "browser_tabs", "--arguments", json.dumps({"action": "list"}))
    code, report = await check(server.found["port"], *tool, "--watch", "40")
    watch = report["facts"]["watch"]
    assert (code, watch["stream"], watch["session"]) == (0, True, "ended"), watch
    assert watch["pings"] >= 2 and 2_500 <= watch["ping_interval_ms"] <= 6_000, watch
    assert 4_500 <= watch["unanswered_ms"] <= 9_000, watch
    assert any("pings are answered" in line for line in report["adds"])


async def test_a_server_that_ends_a_silent_session(start):
    server = await asyncio.to_thread(start, stack.start_server, "rmcp", KEEP_ALIVE_SECS="2")
    code, report = await check(server.found["port"], "--watch", "40")
    watch = report["facts"]["watch"]
    assert (code, watch["pings"], watch["session"]) == (0, 0, "ended"), watch
    assert 1_500 <= watch["silent_ms"] <= 6_000, watch
    assert any("upstream.keepalive_secs" in line for line in report["warnings"])


async def test_a_server_without_either_habit(servers):
    code, report = await check(servers["typescript-v1"], "--watch", "2")
    watch = report["facts"]["watch"]
    assert (code, watch["stream"], watch["stream_ended"], watch["pings"]) == (0, True, False, 0), watch
    assert watch["session"] == "lives" and watch["unanswered_ms"] is None, watch
    assert any("more than 2" in line and "--watch" in line for line in report["unknown"]), report["unknown"]


async def test_a_server_whose_discovery_lists_older_revisions_alone(start):
    """As servers in Go answer it: that is no promise of 2026-07-28."""
    server = await asyncio.to_thread(start, stack.start_server, "typescript-v1", DISCOVER="1")
    code, report = await check(server.found["port"])
    assert code == 0
    assert (report["facts"]["legacy"]["revisions"], report["facts"]["modern"]) == (LEGACY, None), report
