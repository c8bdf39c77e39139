"""A FastMCP server without an event store, for 2026-07-28 and older revisions; it cannot resume."""

from dataclasses import dataclass

from fastmcp import Context, FastMCP

from common import IS_STDIO, add_tools, counters, serve
from modern import add_modern_tools


@dataclass
class Word:
    word: str


async def ask(ctx, kind):
    """FastMCP has its own function for elicitation only."""
    if kind != "elicitation":
        raise ValueError(f"{kind} is not asked here")
    return (await ctx.elicit("a word?", response_type=Word)).data.word


server = FastMCP("python-fastmcp")
add_tools(server, Context, ask, plain={"output_schema": None})
add_modern_tools(server, Context)
server.custom_route("/counters", methods=["GET"])(counters)
if IS_STDIO:
    server.run("stdio")
else:
    serve(server.http_app(path="/mcp"))
