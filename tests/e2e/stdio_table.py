"""Prints the table of docs/stdio.md: the same cases through mcp-resume and through other gateways, before the same server on stdio.

    .venvs/driver/bin/python stdio_table.py [PART OF A CASE…]

Each case has a gateway of its own, and the client on the TypeScript SDK 1. A cell is "yes", "no", or "–" where a case cannot be tried.
"""

import asyncio
import os
import shlex
import signal
import sys
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from pathlib import Path

from harness import stack, stdio
from harness.raw import ask, call, open_session
from harness.relay import Cut, Relay
from harness.stack import LEGACY, Client, eventually, published, python

CLIENT = "typescript-v1"
SERVER = stdio.SERVERS["typescript-v1"].command
# Time in which the end of a call or of a process must come.
SOON = 10.0
IDLE_SECS = 5


def mcp_resume(port, is_idle_ended, store):
    settings = {"STORE__KIND": "disk", "STORE__PATH": store}
    if is_idle_ended:
        settings["UPSTREAM__CHILD_IDLE_SECS"] = IDLE_SECS
    return stdio.start_proxy("typescript-v1", listen=port, **settings)


def supergateway(port, is_idle_ended, store):
    kept = ("--outputTransport", "streamableHttp", "--stateful", "--port", "PORT")
    idle = ("--sessionTimeout", str(IDLE_SECS * 1000)) if is_idle_ended else ()
    return other(port, published("supergateway", "dist/index.js", "--stdio", shlex.join(SERVER), *kept, *idle))


def npm_mcp_proxy(port, is_idle_ended, store):
    return other(port, published("mcp-proxy", "dist/bin/mcp-proxy.mjs", "--port", "PORT", "--", *SERVER))


def pypi_mcp_proxy(port, is_idle_ended, store):
    program = (python("mcp-proxy"), "servers/published.py", "mcp_proxy", "--pass-environment")
    return other(port, (*program, "--port", "PORT", "--", *SERVER))


def other(port, command):
    return stack.start_program(command, PORT=str(port), COUNTERS=str(stdio.COUNTERS))


GATEWAYS = {
    "mcp-resume": mcp_resume,
    "supergateway 4.0.0": supergateway,
    "mcp-proxy 6.7.19 (npm)": npm_mcp_proxy,
    "mcp-proxy 0.13 (PyPI)": pypi_mcp_proxy,
}


class Gateway:
    """One gateway at a port of its own, until `stop`."""

    def __init__(self, start, is_idle_ended=False):
        stdio.COUNTERS.mkdir(exist_ok=True)
        self._start, self._is_idle_ended = start, is_idle_ended
        self._folder = tempfile.TemporaryDirectory()
        self.port = stack.free_port()
        self.begin()

    def begin(self):
        self._process = self._start(self.port, self._is_idle_ended, Path(self._folder.name) / "store").wait()

    def servers(self):
        """The processes of the server."""
        return [pid for pid in descendants(self._process.pid) if is_server(pid)]

    def kill(self):
        self._process.kill()

    def stop(self):
        left = descendants(self._process.pid)
        self._process.stop()
        for pid in left:
            if is_server(pid):
                os.kill(pid, signal.SIGKILL)
        self._folder.cleanup()


def descendants(pid):
    found = []
    for child in stdio.children_of(pid):
        found += [child, *descendants(child)]
    return found


def is_server(pid):
    command = stdio.command_of(pid)
    # The program may be named by its path.
    return command[1:3] == [word.encode() for word in SERVER[1:]] and stdio.is_running(pid)


def kill_servers(gateway):
    killed = gateway.servers()
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    return killed


def session(relay, tool="quick", **arguments):
    return Client(CLIENT, LEGACY, relay.url(), tool, arguments, then=True, timeout_ms=15_000)


async def runs(key):
    """Waits until the call has begun at the server."""
    await eventually(lambda: stdio.counters(key)["started"] == 1, SOON)


async def a_call(gateway, key):
    async with Relay(gateway.port) as relay, session(relay, key=key) as client:
        return await client.outcome(0) == ("result", "quick")


async def progress_comes(gateway, key):
    async with Relay(gateway.port) as relay, session(relay, "long", steps=3, interval_ms=100, key=key) as client:
        return await client.outcome(0) == ("result", "done 3") and client.transcript.progress == [1, 2, 3]


async def a_cut_call_completes(gateway, key):
    """The cut is after two events, or before any byte where there is no event."""
    for at in (Cut("event", 2), Cut("silence", 300)):
        call_key = f"{key}-{at.at}"
        long = {"steps": 5, "interval_ms": 200, "key": call_key}
        async with Relay(gateway.port, at) as relay, session(relay, "long", **long) as client:
            outcome = await client.outcome(0)
            if relay.cuts:
                return outcome == ("result", "done 5") and stdio.counters(call_key)["started"] == 1
    return None


async def a_question_is_answered(gateway, key):
    async with Relay(gateway.port) as relay, session(relay, "ask", kind="elicitation", key=key) as client:
        return await client.outcome(0) == ("result", "answered elicited")


async def messages_outside_of_calls_come(gateway, key):
    async with Relay(gateway.port) as relay, session(relay, key=key) as client:
        await client.outcome(0)
        client.begin("announce", {"steps": 3, "interval_ms": 50})
        await client.outcome(1)
        await eventually(lambda: client.transcript.logged == [1, 2, 3], SOON)
        return True


async def a_cancel_reaches_the_server(gateway, key):
    opened = await open_session(gateway.port)
    answer = await ask(gateway.port, body=call(3, "long", steps=600, interval_ms=50, key=key), **opened)
    await runs(key)
    cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 3}}
    await ask(gateway.port, body=cancel, **opened)
    await eventually(lambda: stdio.counters(key)["cancelled"] == 1, SOON)
    return True


async def sessions_have_processes_of_their_own(gateway, key):
    for _ in range(2):
        await open_session(gateway.port)
    return len(gateway.servers()) == 2


async def a_death_in_a_call_is_an_error(gateway, key):
    async with Relay(gateway.port) as relay, session(relay, "long", steps=600, interval_ms=100, key=key) as client:
        await runs(key)
        kill_servers(gateway)
        began = time.monotonic()
        ending, message = await client.outcome(0) or ("no", "end")
        return ending == "error" and message != "timeout" and time.monotonic() - began < SOON


async def the_session_goes_on_after_that(gateway, key):
    async with Relay(gateway.port) as relay, session(relay, "long", steps=600, interval_ms=100, key=key) as client:
        await runs(key)
        kill_servers(gateway)
        await client.outcome(0)
        client.begin("quick", {"key": key})
        return await client.outcome(1) == ("result", "quick")


async def a_death_between_calls_is_not_noticed(gateway, key):
    async with Relay(gateway.port) as relay, session(relay, key=key) as client:
        await client.outcome(0)
        kill_servers(gateway)
        await asyncio.sleep(2)
        client.begin("quick", {"key": key})
        return await client.outcome(1) == ("result", "quick")


async def a_new_session_works_after_a_death(gateway, key):
    await open_session(gateway.port)
    kill_servers(gateway)
    await asyncio.sleep(2)
    return await progress_comes(gateway, key)


async def another_session_outlives_a_death(gateway, key):
    async with Relay(gateway.port) as relay, session(relay, key=key) as client:
        await client.outcome(0)
        own = gateway.servers()
        await open_session(gateway.port)
        others = set(gateway.servers()) - set(own)
        for pid in others or own:
            os.kill(pid, signal.SIGKILL)
        await asyncio.sleep(2)
        client.begin("quick", {"key": key})
        return await client.outcome(1) == ("result", "quick")


async def a_session_outlives_a_restart(gateway, key):
    async with Relay(gateway.port) as relay, session(relay, key=key) as client:
        await client.outcome(0)
        gateway.kill()
        await asyncio.to_thread(gateway.begin)
        client.begin("quick", {"key": key})
        return await client.outcome(1) == ("result", "quick")


async def a_kill_leaves_no_process(gateway, key):
    """One server is idle, another in a call."""
    opened = await open_session(gateway.port)
    answer = await ask(gateway.port, body=call(3, "long", steps=600, interval_ms=100, key=key), **opened)
    await runs(key)
    await open_session(gateway.port)
    left = gateway.servers()
    gateway.kill()
    try:
        await eventually(lambda: not any(map(is_server, left)), SOON)
        return True
    finally:
        for pid in filter(is_server, left):
            os.kill(pid, signal.SIGKILL)
        answer.reset()
        await asyncio.to_thread(gateway.begin)


async def an_idle_process_ends(gateway, key):
    for _ in range(2):
        await open_session(gateway.port)
    if len(gateway.servers()) < 2:
        # One process serves all.
        return None
    await eventually(lambda: not gateway.servers(), IDLE_SECS + SOON)
    return True


async def a_body_holds_one_request(gateway, key):
    opened = await open_session(gateway.port)
    hidden = '{"jsonrpc":"2.0","id":8,"method":"tools/call","params":{"name":"quick","arguments":{"key":"%s"}}}' % key
    body = '{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"quick","arguments":\n%s\n}}' % hidden
    headers = {name.replace("_", "-"): value for name, value in opened.items()}
    headers |= {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    request = urllib.request.Request(f"http://127.0.0.1:{gateway.port}/mcp", body.encode(), headers)
    await asyncio.to_thread(status, request)
    await asyncio.sleep(1)
    return stdio.counters(key)["started"] == 0


def status(request):
    try:
        with urllib.request.urlopen(request, timeout=SOON) as answer:
            answer.read(1)
            return answer.status
    except (urllib.error.HTTPError, TimeoutError):
        return None


CASES = {
    "a call": a_call,
    "all progress of a call": progress_comes,
    "a question in a call is answered": a_question_is_answered,
    "messages outside of calls reach the GET stream": messages_outside_of_calls_come,
    "a cancel reaches the server": a_cancel_reaches_the_server,
    "a call whose connection is cut completes, and has run once": a_cut_call_completes,
    "each session has a process of its own": sessions_have_processes_of_their_own,
    "the process dies in a call: the client gets an error at once": a_death_in_a_call_is_an_error,
    "… and its session goes on": the_session_goes_on_after_that,
    "the process dies between two calls: the session goes on": a_death_between_calls_is_not_noticed,
    "… and new sessions work": a_new_session_works_after_a_death,
    "… and the sessions of others go on": another_session_outlives_a_death,
    "the gateway is killed and started again: the session goes on": a_session_outlives_a_restart,
    "… and it has left no process behind": a_kill_leaves_no_process,
    f"a session left without DELETE: its process ends, with a limit of {IDLE_SECS} s where there is one": an_idle_process_ends,
    "a line end in a body begins no second request": a_body_holds_one_request,
}


async def tried(start, case):
    gateway = await asyncio.to_thread(Gateway, start, case is an_idle_process_ends)
    try:
        return {True: "yes", False: "no", None: "–"}[await asyncio.wait_for(case(gateway, uuid.uuid4().hex), 60)]
    except (AssertionError, TimeoutError, OSError, asyncio.IncompleteReadError) as error:
        print(f"{case.__name__}: {error!r:.300}", file=sys.stderr)
        return "no"
    finally:
        await asyncio.to_thread(gateway.stop)


async def main(words_of_cases):
    chosen = GATEWAYS
    print("|", " | ".join(["case", *chosen]), "|")
    print("|---" * (len(chosen) + 1) + "|")
    for words, case in CASES.items():
        if words_of_cases and not any(part in words for part in words_of_cases):
            continue
        cells = [await tried(start, case) for start in chosen.values()]
        print("|", " | ".join([words, *cells]), "|", flush=True)


asyncio.run(main(sys.argv[1:]))
