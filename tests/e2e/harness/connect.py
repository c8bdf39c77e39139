"""`mcp-resume connect` as the server of a host on stdio, and a bare host of it."""

import asyncio
import contextlib
import json
import os
from itertools import count

from harness.preloaded import LINE_MAX
from harness.stack import LEGACY, MODERN, PROTOCOL, START_LIMIT, proxy_binary

META = "io.modelcontextprotocol/"


def words(target, home, *options, **env):
    """The command line of `connect` before a URL, or before a program whose words are a list.

    `home`: the folder of its files; `env`: further variables. It has no settings of the proxy, as `clean_environment`.
    """
    settings = [word for name in os.environ if name.startswith("MCP_RESUME_") for word in ("-u", name)]
    variables = [f"{name}={value}" for name, value in env.items()]
    behind = [target] if isinstance(target, str) else ["--", *target]
    return ["env", *settings, f"HOME={home}", *variables, proxy_binary(), "connect", *options, *behind]


def program(command):
    """A command line as the URL of a client."""
    return "stdio:" + json.dumps(command)


class Host:
    """`async with Host(words(…), era) as host`: a host that writes lines and reads lines. The session is open in it."""

    def __init__(self, command, era=LEGACY, opens=True):
        self._command, self._era, self._opens = command, era, opens
        self._ids = count(1)
        self._waiting = {}
        # All that `connect` has written, and its stderr.
        self.lines, self.noise = [], []

    async def __aenter__(self):
        pipe = asyncio.subprocess.PIPE
        self.process = await asyncio.create_subprocess_exec(*self._command, stdin=pipe, stdout=pipe, stderr=pipe, limit=LINE_MAX)
        self._reading = asyncio.gather(self._read(), self._read_noise())
        if self._opens:
            await self.open()
        return self

    async def __aexit__(self, *_):
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()
        await self._reading

    async def open(self):
        """Opens the session, or asks for the later revision."""
        if self._era == MODERN:
            answer = await self.ask("server/discover")
            assert PROTOCOL[MODERN] in answer["result"]["supportedVersions"], answer
            return
        client = {"name": "bare", "version": "1"}
        params = {"protocolVersion": PROTOCOL[LEGACY], "capabilities": {}, "clientInfo": client}
        answer = await self.ask("initialize", params)
        assert answer["result"]["serverInfo"]["name"] != "mcp-resume", (answer, self.noise)
        self.write({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def write(self, message):
        self.process.stdin.write(json.dumps(message).encode() + b"\n")

    def begin(self, method, params=None):
        """Writes a request. Returns the future of its response."""
        request_id, params = next(self._ids), params or {}
        self.last_id = request_id
        if self._era == MODERN:
            own = {"protocolVersion": PROTOCOL[MODERN], "clientInfo": {"name": "bare", "version": "1"}, "clientCapabilities": {}}
            own = {META + key: value for key, value in own.items()}
            params = {**params, "_meta": {**params.get("_meta", {}), **own}}
        self._waiting[request_id] = asyncio.get_running_loop().create_future()
        self.write({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params})
        return self._waiting[request_id]

    async def ask(self, method, params=None):
        async with asyncio.timeout(START_LIMIT):
            return await self.begin(method, params)

    def call(self, tool, progress=None, **arguments):
        """Begins a call. `progress`: the token of its progress."""
        meta = {} if progress is None else {"_meta": {"progressToken": progress}}
        return self.begin("tools/call", {"name": tool, "arguments": arguments, **meta})

    def cancel_last(self):
        """Cancels the last request. Its ID gets no response."""
        params = {"requestId": self.last_id}
        if self._era == MODERN:
            params["_meta"] = {f"{META}protocolVersion": PROTOCOL[MODERN]}
        self.write({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})

    def progress_of(self, token):
        """The numbers of the progress with this token."""
        told = [line["params"] for line in self.lines if line.get("method") == "notifications/progress"]
        return [params["progress"] for params in told if params["progressToken"] == token]

    async def _read(self):
        async for line in self.process.stdout:
            message = json.loads(line)
            self.lines.append(message)
            if "method" not in message:
                # A second response has no future, and ends the test.
                answered = self._waiting.pop(message["id"])
                if not answered.cancelled():
                    answered.set_result(message)

    async def _read_noise(self):
        async for line in self.process.stderr:
            self.noise.append(line.decode().rstrip())
