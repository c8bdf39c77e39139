"""A server on the Python SDK 2.x without an event store, for 2026-07-28 and older revisions; it cannot resume."""

import asyncio
from typing import Annotated

from mcp.server.mcpserver import Context, Elicit, MCPServer, Resolve
from mcp_types import SamplingMessage, TextContent
from pydantic import BaseModel

from common import IS_STDIO, add_tools, counters, run, serve
from modern import add_modern_tools


class Word(BaseModel):
    word: str


async def ask(ctx, kind):
    if kind == "sampling":
        question = SamplingMessage(role="user", content=TextContent(type="text", text="a word?"))
        answer = await ctx.session.create_message([question], max_tokens=16, related_request_id=ctx.request_id)
        return answer.content.text
    if kind == "roots":
        return str((await ctx.session.list_roots()).roots[0].uri)
    return (await ctx.elicit("a word?", Word)).data.word


server = MCPServer("python-mcp2")
add_tools(server, Context, ask, plain={"structured_output": False})
add_modern_tools(server, Context)


@server.tool()
async def change(ctx: Context) -> str:
    await ctx.notify_tools_changed()
    return "changed"


async def ask_late() -> Elicit[Word]:
    await asyncio.sleep(1.5)
    return Elicit("a word?", Word)


@server.tool()
async def confirm(word: Annotated[Word, Resolve(ask_late)], key: str = "") -> str:
    with run(key):
        return f"answered {word.word}"


server.custom_route("/counters", methods=["GET"])(counters)
if IS_STDIO:
    server.run("stdio")
else:
    serve(server.streamable_http_app())
