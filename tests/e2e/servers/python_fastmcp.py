"""A FastMCP server without an event store, for 2026-07-28 and older revisions; it cannot resume."""

import asyncio
from dataclasses import dataclass

from fastmcp import Context, FastMCP
from mcp_types import ElicitRequest, InputRequiredResult

from common import IS_STDIO, add_tools, counters, run, serve
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


@server.tool(output_schema=None)
async def confirm(ctx: Context, key: str = ""):
    answer = (ctx.input_responses or {}).get("word")
    if answer is None:
        await asyncio.sleep(1.5)
        form = {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}
        question = {"method": "elicitation/create", "params": {"mode": "form", "message": "a word?", "requestedSchema": form}}
        return InputRequiredResult(input_requests={"word": ElicitRequest.model_validate(question)})
    with run(key):
        return f"answered {answer.content['word']}"


server.custom_route("/counters", methods=["GET"])(counters)
if IS_STDIO:
    server.run("stdio")
else:
    serve(server.http_app(path="/mcp"))
