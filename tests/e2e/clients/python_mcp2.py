"""Tool calls through the stock Python SDK 2.x."""

from common import (
    deadline,
    flags,
    linger,
    main,
    make_calls,
    on_progress,
    say,
    say_change,
    say_connected,
    say_result,
)
from mcp import Client
from mcp_types import CreateMessageResult, ElicitResult, ListRootsResult, Root, TextContent


async def sample(context, params):
    say("asked", kind="sampling")
    return CreateMessageResult(role="assistant", model="fixed", content=TextContent(type="text", text="sampled"))


async def elicit(context, params):
    say("asked", kind="elicitation")
    return ElicitResult(action="accept", content={"word": "elicited"})


async def roots(context):
    say("asked", kind="roots")
    return ListRootsResult(roots=[Root(uri="file:///rooted")])


async def log(params):
    say("logged", data=params.data)


async def receive(message):
    if not isinstance(message, Exception):
        say_change(message)


async def session():
    async with Client(
        flags.url,
        mode="auto" if flags.mode == "modern" else "legacy",
        sampling_callback=sample,
        elicitation_callback=elicit,
        list_roots_callback=roots,
        logging_callback=log,
        message_handler=receive,
    ) as client:
        say_connected(client.protocol_version)

        async def call(tool, arguments):
            result = await client.call_tool(tool, arguments, deadline, progress_callback=on_progress)
            say_result(result.is_error, result.content[0].text)

        await make_calls(
            call,
            level=client.set_logging_level,
            subscribe=client.subscribe_resource,
            list=lambda _: client.list_tools(),
        )
        await linger()


main(session)
