"""Small and old programs on stdio: how soon a client is answered, and how many sessions follow each other."""

import sys
import time

import pytest

from harness import stack
from harness.raw import ask, open_session
from harness.stack import MODERN, PROTOCOL, ROOT, python

pytestmark = pytest.mark.anyio

MINIMAL = (sys.executable, "-I", "-S", str(ROOT / "servers/minimal_stdio.py"))
PROGRAMS = {
    "minimal": MINIMAL,
    # It breaks at that method, and is silent until its next line.
    "python-mcp1-6": (python("mcp1-6"), str(ROOT / "servers/python_mcp1_6.py")),
}
# The first answer, after the start of the program. One that is never asked again waits for `upstream.start_secs`, 60 s.
LIMIT = 7.0

# More than would start at once if a minute had a number of starts.
SESSIONS = 40


async def modern(port, method):
    of_client = {"protocolVersion": PROTOCOL[MODERN], "clientInfo": {"name": "raw", "version": "1"}, "clientCapabilities": {}}
    meta = {f"io.modelcontextprotocol/{name}": value for name, value in of_client.items()}
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"_meta": meta}}
    answer = await ask(port, body=body, mcp_protocol_version=PROTOCOL[MODERN], mcp_method=method)
    return answer.status, await answer.messages()


async def timed(work):
    began = time.monotonic()
    answer = await work
    return time.monotonic() - began, answer


@pytest.mark.parametrize("program", PROGRAMS)
async def test_one_that_is_silent_to_discovery_is_soon_known(program, start):
    """A client of 2026-07-28 is refused in time to fall back, and one of an earlier revision is served."""
    proxy = start(stack.start_proxy_stdio, PROGRAMS[program], {}).found["port"]
    # How long the program takes to start now.
    usual, session = await timed(open_session(proxy))
    took, (status, messages) = await timed(modern(proxy, "server/discover"))
    assert (status, "error" in messages[0]) == (400, True), messages
    assert took < LIMIT + usual, (took, usual)
    again, (status, _) = await timed(modern(proxy, "server/discover"))
    assert (status, again < 1 + usual) == (400, True), again
    answer = await ask(proxy, body={"jsonrpc": "2.0", "id": 1, "method": "tools/list"}, **session)
    [listed] = await answer.messages()
    assert [tool["name"] for tool in listed["result"]["tools"]] == ["quick"]


async def session_at(port):
    """A whole session of one call."""
    session = await open_session(port)
    answer = await ask(port, body={"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "quick"}}, **session)
    [called] = await answer.messages()
    assert called["result"]["content"][0]["text"] == "quick"
    ended = await ask(port, method="DELETE", **session)
    await ended.body()


async def test_sessions_in_a_row_take_no_longer_than_through_supergateway(start):
    """Frameworks open a session for each call. Nothing bounds the starts on a loopback address, with the defaults of both."""
    kept = ("--outputTransport", "streamableHttp", "--stateful", "--port", "PORT")
    gateway = stack.published("supergateway", "dist/index.js", "--stdio", " ".join(MINIMAL), *kept)
    ports = {
        "mcp-resume": start(stack.start_proxy_stdio, MINIMAL, {}).found["port"],
        "supergateway": start(stack.start_program, gateway).found["port"],
    }
    took = dict.fromkeys(ports, 0.0)
    for _ in range(SESSIONS):
        for name, port in ports.items():
            took[name] += (await timed(session_at(port)))[0]
    assert took["mcp-resume"] < 2 * took["supergateway"], took
