"""Tasks at 2026-07-28 for bare requests: a client that declares them, and a scripted server with tasks of its own."""

import asyncio
import contextlib
import json
import os

from harness import stack
from harness.raw import ask
from harness.relay import is_response, parse_head, read_body

EXTENSION = "io.modelcontextprotocol/tasks"
META = "io.modelcontextprotocol"


def body(request_id, method, declares=True, **params):
    """One request; `declares`: with tasks among the client's capabilities."""
    extensions = {"extensions": {EXTENSION: {}}} if declares else {}
    meta = {
        f"{META}/protocolVersion": "2026-07-28",
        f"{META}/clientInfo": {"name": "raw", "version": "1"},
        f"{META}/clientCapabilities": {"elicitation": {"form": {}}, **extensions},
    }
    if method == "tools/call":
        meta["progressToken"] = request_id
    return {"jsonrpc": "2.0", "id": request_id, "method": method, "params": {**params, "_meta": meta}}


async def send(port, method, request_id=1, declares=True, accept=None, **params):
    """Sends one request, and returns its response."""
    headers = {"mcp_protocol_version": "2026-07-28", "mcp_method": method}
    if name := params.get("taskId") or params.get("name"):
        headers["mcp_name"] = name
    if accept:
        headers["accept"] = accept
    return await ask(port, body=body(request_id, method, declares, **params), **headers)


async def answer(port, method, **params):
    """The message that answers a request: its result or its error."""
    [message] = [found for found in await (await send(port, method, **params)).messages() if "method" not in found]
    return message


async def begin(port, tool, **arguments):
    """Calls a tool whose call becomes a task; returns the handle."""
    result = (await answer(port, "tools/call", name=tool, arguments=arguments))["result"]
    assert (result["resultType"], result["status"]) == ("task", "working"), result
    return result


async def poll(port, task):
    """The state of a task, at once."""
    message = await answer(port, "tasks/get", taskId=task, accept="application/json")
    assert "result" in message, message
    return message["result"]


async def settled(port, task, limit=stack.START_LIMIT):
    """The outcome of a task."""
    async with asyncio.timeout(limit):
        while (state := await poll(port, task))["status"] in ("working", "input_required"):
            await asyncio.sleep(0.1)
    return state


def text_of(state):
    """The text of a completed task."""
    assert (state["status"], state["result"]["resultType"]) == ("completed", "complete"), state
    return state["result"]["content"][0]["text"]


def handles(relay):
    """The IDs of the tasks of which the relay has passed a handle."""
    answers = (event.data for exchange in (*relay.calls, *relay.resumes) for event in exchange.events)
    said = [json.loads(data) for data in answers if is_response(data)]
    return [message["result"]["taskId"] for message in said if message.get("result", {}).get("resultType") == "task"]


def states(relay):
    """The states of tasks that the relay has passed in answer to polls and their resumptions."""
    told = [event for exchange in (*relay.polls, *relay.resumes) for event in exchange.events if is_response(event.data)]
    return [result for event in told if "status" in (result := json.loads(event.data).get("result", {}))]


async def one_handle(relay):
    """Waits for the first handle; returns its task's ID."""
    await stack.eventually(lambda: handles(relay))
    return handles(relay)[0]


INSPECTOR = "node_modules/@modelcontextprotocol/inspector/clients/cli/build/index.js"


async def inspect(url, tool, arguments, home):
    """Calls a tool by the Inspector's command line, which keeps its settings at `home`; returns its status and its words."""
    process = await asyncio.create_subprocess_exec(
        *("node", INSPECTOR, url, "--transport", "http", "--protocol-era", "modern", "--format", "json", "--quiet"),
        *("--method", "tools/call", "--tool-name", tool, "--tool-args-json", json.dumps(arguments)),
        cwd=stack.ROOT,
        env={**os.environ, "HOME": str(home)},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        said, _ = await asyncio.wait_for(process.communicate(), stack.START_LIMIT)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode, said.decode()


class OwnTasks:
    """`async with OwnTasks() as server`: a scripted server at `server.port` that has tasks, with answers that never differ.

    Each answer has the request's headers and body, as far as they are the client's, among its metadata.
    """

    STATE = {"status": "working", "createdAt": "2026-11-01T10:00:00Z", "lastUpdatedAt": "2026-11-01T10:00:00Z", "ttlMs": 60000}

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        self._server.close()

    async def _accept(self, reader, writer):
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while True:
                _, headers = parse_head(await reader.readuntil(b"\r\n\r\n"))
                sent = b"".join([piece async for piece in read_body(headers, reader, request=True)])
                status, message = self._answer(json.loads(sent or b"{}"), headers)
                answer = json.dumps(message).encode()
                head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(answer)}\r\n\r\n"
                writer.write(head.encode() + answer)
                await writer.drain()
        writer.close()

    def _answer(self, request, headers):
        seen = {name: value for name, value in headers.items() if name.startswith("mcp-")}
        meta = {"_meta": {"seen": {"headers": seen, "params": request.get("params")}}}
        envelope = {"jsonrpc": "2.0", "id": request.get("id")}
        result = {
            "server/discover": {
                "supportedVersions": ["2026-07-28"],
                "capabilities": {"tools": {}, "extensions": {EXTENSION: {}}},
                "ttlMs": 0,
                "cacheScope": "private",
            },
            "tools/call": {**self.STATE, "resultType": "task", "taskId": "own-1"},
            "tasks/get": {**self.STATE, "taskId": "own-1"},
            "tasks/update": {},
            "tasks/cancel": {},
        }.get(request.get("method"))
        if result is None:
            return 404, {**envelope, "error": {"code": -32601, "message": "Method not found", "data": meta}}
        return 200, {**envelope, "result": {"resultType": "complete", **result, **meta}}
