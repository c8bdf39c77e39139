"""Prints the table of cuts in docs/how-it-works.md: a tool of 4 s that answers in JSON, and one cut of its call at each time.

    .venvs/driver/bin/python cut_table.py

A row is a client with a value of `delivery.commit_after_ms`. A cell is "yes" if the result reached the client, else "no" with the number of times
that the tool ran if that is not one. The client `retry` sends the same POST again, once, in its session.
"""

import asyncio
import time
import uuid

from harness import raw, stack
from harness.relay import Cut, Relay
from harness.stack import LEGACY, SERVERS, counters, run_client

SERVER = "typescript-v1-json"
CLIENTS = ("typescript-v1", "typescript-v2", "python-mcp1", "python-mcp2", "fastmcp")
CUTS_MS = (200, 1000, 1800, 2500, 3500)
TOOL_MS = 4000


async def stock(client, relay, tool, arguments):
    said = await run_client(client, LEGACY, relay.url(), tool, arguments, timeout_ms=12_000)
    return said.ending == "result"


async def retry(_, relay, tool, arguments):
    session = await raw.open_session(relay.port)
    for _ in range(2):
        try:
            response = await raw.ask(relay.port, body=raw.call(1, tool, **arguments), **session)
            return any("result" in message for message in await response.messages())
        except (OSError, EOFError, asyncio.IncompleteReadError):
            await asyncio.sleep(0.1)
    return False


async def cell(client, port, server, cut_ms):
    key = uuid.uuid4().hex
    tool, arguments, _ = SERVERS[SERVER].long(1, TOOL_MS, key)
    async with Relay(port, Cut("silence", cut_ms)) as relay:
        has_result = await (retry if client == "retry" else stock)(client, relay, tool, arguments)
        assert relay.cuts == 1, relay.report()
    runs = counters(server, key)["started"]
    return ("yes" if has_result else "no") + ("" if runs == 1 else f" ({runs} runs)")


async def main():
    server = stack.start_server(SERVER)
    port = server.wait().found["port"]
    print("| client | `commit_after_ms` |", " | ".join(f"{cut / 1000:g} s" for cut in CUTS_MS), "|")
    print("|---|---|" + "---|" * len(CUTS_MS))
    try:
        for client in (*CLIENTS, "retry"):
            for commit_ms in (500, 2000):
                proxy = stack.start_proxy(port, DELIVERY__COMMIT_AFTER_MS=commit_ms)
                place = proxy.wait().found["port"]
                began = time.monotonic()
                cells = await asyncio.gather(*(cell(client, place, port, cut) for cut in CUTS_MS))
                print(f"| {client} | {commit_ms} |", " | ".join(cells), "|", flush=True)
                assert time.monotonic() - began < 60
                proxy.stop()
    finally:
        server.stop()


asyncio.run(main())
