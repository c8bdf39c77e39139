"""Tool calls through the stock FastMCP client."""

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
from fastmcp import Client
from fastmcp.client.elicitation import ElicitResult


async def sample(messages, params, context):
    say("asked", kind="sampling")
    return "sampled"


async def elicit(message, response_type, params, context):
    say("asked", kind="elicitation")
    return ElicitResult(action="accept", content={"word": "elicited"})


async def roots(context):
    say("asked", kind="roots")
    return ["file:///rooted"]


async def log(message):
    say("logged", data=message.data)


async def receive(message):
    if not isinstance(message, Exception):
        say_change(message)


async def session():
    client = Client(
        flags.url,
        mode="legacy" if flags.mode == "legacy" else "auto",
        sampling_handler=sample,
        elicitation_handler=elicit,
        roots=roots,
        log_handler=log,
        message_handler=receive,
        progress_handler=on_progress,
    )
    async with client:
        say_connected(client.protocol_version)

        async def call(tool, arguments):
            result = await client.call_tool(tool, arguments, timeout=deadline, raise_on_error=False)
            say_result(result.is_error, result.content[0].text)

        await make_calls(
            call,
            level=client.set_logging_level,
            subscribe=client.session.subscribe_resource,
            list=lambda _: client.list_tools(),
        )
        await linger()


main(session)
