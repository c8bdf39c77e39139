"""A server on the Python SDK 1.x without an event store; it cannot resume.

STATELESS=1: no sessions. SSE=1: HTTP+SSE at /sse, in place of Streamable HTTP.
"""

import os

from mcp.server.fastmcp import Context, FastMCP
from mcp.types import SamplingMessage, TextContent
from pydantic import BaseModel

from common import IS_STDIO, add_tools, counters, serve


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


server = FastMCP("python-mcp1", stateless_http=os.environ.get("STATELESS") == "1")
add_tools(server, Context, ask, plain={"structured_output": False})
server.custom_route("/counters", methods=["GET"])(counters)
if IS_STDIO:
    server.run("stdio")
else:
    serve(server.sse_app() if os.environ.get("SSE") == "1" else server.streamable_http_app())
