"""Shared parts of the Python servers of the suite: the tools, their counters, and the announcement of the port.

With the argument `stdio` a server is on stdio, and notes its runs in files of the folder COUNTERS.
"""

import asyncio
import json
import os
import socket
import sys
from collections import defaultdict
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from starlette.requests import Request
from starlette.responses import JSONResponse

IS_STDIO = sys.argv[1:] == ["stdio"]
RUNS = defaultdict(lambda: {"started": 0, "finished": 0, "cancelled": 0})


def count(key, what):
    RUNS[key][what] += 1
    if IS_STDIO and key:
        with (Path(os.environ["COUNTERS"]) / key).open("a") as lines:
            lines.write(f"{what}\n")


async def counters(request: Request):
    """Answers `/counters?key=K`."""
    return JSONResponse(RUNS[request.query_params["key"]])


@contextmanager
def run(key):
    """Counts one run of `key`: started, then finished, or cancelled."""
    count(key, "started")
    try:
        yield
    except asyncio.CancelledError:
        count(key, "cancelled")
        raise
    count(key, "finished")


def add_tools(server, Context, ask, plain):
    """Adds the suite's tools.

    `ask(ctx, kind)` sends one request to the client and returns the answer's text; `plain` are the settings of a tool without an
    output schema, which these SDKs otherwise generate.
    """

    @server.tool()
    async def long(steps: int, interval_ms: int, ctx: Context, key: str = "") -> str:
        with run(key):
            for n in range(1, steps + 1):
                await asyncio.sleep(interval_ms / 1000)
                await ctx.report_progress(n, steps, f"step {n}")
            return f"done {steps}"

    server.tool(name="plain", **plain)(long)

    @server.tool()
    async def quick(key: str = "") -> str:
        with run(key):
            return "quick"

    # Differs from the `ask` that it calls; the name on the wire is the suite's.
    @server.tool(name="ask")
    async def ask_tool(kind: str, ctx: Context, delay_ms: int = 0, key: str = "") -> str:
        with run(key):
            await ctx.report_progress(1, 1, "step 1")
            await asyncio.sleep(delay_ms / 1000)
            return f"answered {await ask(ctx, kind)}"

    @server.tool()
    async def survey(ctx: Context, at_once: bool = False, key: str = "") -> str:
        with run(key):
            await ctx.report_progress(1, 1, "step 1")
            kinds = ["sampling", "elicitation"]
            if at_once:
                words = await asyncio.gather(*(ask(ctx, kind) for kind in kinds))
            else:
                words = [await ask(ctx, kind) for kind in kinds]
            return f"answered {' '.join(words)}"


def serve(app):
    """Serves `app` on PORT (0: any) of the loopback interface and prints the port on stdout."""
    listener = socket.create_server(("127.0.0.1", int(os.environ.get("PORT", "0"))))
    print(json.dumps({"port": listener.getsockname()[1]}), flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])
