"""The tools of the Python servers that speak 2026-07-28 which older revisions do not have."""

from mcp_types import ElicitRequest, ElicitRequestFormParams, InputRequiredResult

from common import run

WORD = {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}
QUESTION = ElicitRequest(params=ElicitRequestFormParams(message="a word?", requested_schema=WORD))


def add_modern_tools(server, Context):
    """Adds the tool that asks by its result. The answer comes with another call."""

    @server.tool(name="input")
    async def input_tool(ctx: Context, key: str = "") -> str | InputRequiredResult:
        with run(key):
            if ctx.input_responses:
                return f"answered {ctx.input_responses['question'].content['word']}"
            return InputRequiredResult(input_requests={"question": QUESTION})
