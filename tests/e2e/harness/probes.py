"""Scripted clients that ask for 2026-07-28 first, and fall back as the SDKs of Go (1.7) and C# (2.2) do. Neither SDK has a package at npm or PyPI."""

import asyncio
import json
from dataclasses import dataclass
from itertools import count

from harness import raw

MODERN, OLDER = "2026-07-28", "2025-11-25"
META = "io.modelcontextprotocol/"
HEADER_MISMATCH, MISSING_CAPABILITY = -32020, -32021


class Failed(Exception):
    """The client gives up: it neither has a server of the later revision nor falls back."""


@dataclass(frozen=True)
class Sdk:
    """One SDK: what it declares, and when it falls back."""

    info: dict
    capabilities: dict

    def falls_back(self, status, error):
        raise NotImplementedError


class Go(Sdk):
    def falls_back(self, status, error):
        return True


class CSharp(Sdk):
    def falls_back(self, status, error):
        if error is None:
            return status in (400, 404)
        return error["code"] not in (HEADER_MISMATCH, MISSING_CAPABILITY)


SDKS = {
    "go": Go({"name": "go-client", "version": "v1.0.0"}, {"roots": {"listChanged": True}}),
    "csharp": CSharp({"name": "csharp-client", "version": "1.0.0.0"}, {}),
}


class Probing:
    """A client of an SDK. Its requests go to the port one after another; GET streams stay open beside them."""

    def __init__(self, sdk, port):
        self.sdk, self.port = SDKS[sdk], port
        self.ids = count(1)
        self.session = {}
        self.is_modern = False
        self.stream = None

    async def request(self, method, params=None, name=None):
        """Sends a request. Returns the response with its messages, of which the last answers."""
        headers, params = dict(self.session), params or {}
        if self.is_modern:
            own = {"protocolVersion": MODERN, "clientInfo": self.sdk.info, "clientCapabilities": self.sdk.capabilities}
            own = {META + key: value for key, value in own.items()}
            params = {**params, "_meta": {**params.get("_meta", {}), **own}}
            headers |= {"mcp_protocol_version": MODERN, "mcp_method": method}
            headers |= {"mcp_name": name} if name else {}
        body = {"jsonrpc": "2.0", "id": next(self.ids), "method": method, "params": params}
        response = await raw.ask(self.port, body=body, **headers)
        has_messages = response.headers.get("content-type", "").startswith(("application/json", "text/event-stream"))
        return response, await response.messages() if has_messages else []

    async def connect(self):
        self.is_modern = True
        response, messages = await self.request("server/discover")
        answer = messages[-1] if messages else {}
        if "result" in answer:
            if "mcp-session-id" in response.headers:
                raise Failed("a response of the later revision has a session")
            if MODERN in answer["result"]["supportedVersions"]:
                return
        elif not self.sdk.falls_back(response.status, answer.get("error")):
            raise Failed(f"{response.status} {answer}")
        self.is_modern = False
        params = {"protocolVersion": OLDER, "capabilities": self.sdk.capabilities, "clientInfo": self.sdk.info}
        response, messages = await self.request("initialize", params)
        self.session = {"mcp_protocol_version": messages[-1]["result"]["protocolVersion"]}
        if session := response.headers.get("mcp-session-id"):
            self.session["mcp_session_id"] = session
        done = {"jsonrpc": "2.0", "method": "notifications/initialized", "params": {}}
        await (await raw.ask(self.port, body=done, **self.session)).body()
        self.stream = asyncio.create_task(self._listen())

    async def _listen(self):
        response = await raw.ask(self.port, method="GET", **{**self.session, "accept": "text/event-stream"})
        try:
            while event := await response.event():
                await self._answer(event)
        finally:
            response.close()

    async def _answer(self, event):
        """Answers what a server asks outside a call: a ping, or the roots, of which there are none."""
        message = json.loads(event.data) if event.data else {}
        if "id" in message and "method" in message:
            result = {"roots": []} if message["method"] == "roots/list" else {}
            body = {"jsonrpc": "2.0", "id": message["id"], "result": result}
            await (await raw.ask(self.port, body=body, **self.session)).body()

    async def call(self, tool, arguments):
        """Calls a tool with progress. Returns the text of its result, and the numbers of its progress."""
        # Both SDKs read the tools before their callers choose one.
        await self.request("tools/list")
        token = next(self.ids)
        params = {"name": tool, "arguments": arguments, "_meta": {"progressToken": token}}
        _, messages = await self.request("tools/call", params, tool)
        progress = [message["params"]["progress"] for message in messages if message.get("method") == "notifications/progress"]
        return messages[-1]["result"]["content"][0]["text"], progress

    async def close(self):
        if self.stream:
            self.stream.cancel()
            await asyncio.gather(self.stream, return_exceptions=True)
        if "mcp_session_id" in self.session:
            await (await raw.ask(self.port, method="DELETE", **self.session)).body()
