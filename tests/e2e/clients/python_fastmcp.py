"""Tool calls through the stock FastMCP client."""

from common import (
    deadline,
    flags,
    linger,
    main,
    make_calls,
    on_progress,
    program,
    say,
    say_change,
    say_connected,
    say_result,
)
from fastmcp import Client
from fastmcp.client.auth import OAuth
from fastmcp.client.elicitation import ElicitResult
from fastmcp.client.transports import StdioTransport
from login import Browser
from mcp.client.auth import AuthorizationCodeResult


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


class Login(OAuth):
    """The SDK's own, with the suite's browser in place of the user's."""

    browser = Browser(lambda answer: AuthorizationCodeResult(**answer))

    async def redirect_handler(self, url):
        await self.browser.redirect(url)

    async def callback_handler(self):
        return await self.browser.callback()


async def session():
    parameters = program()
    client = Client(
        StdioTransport(**parameters, keep_alive=False) if parameters else flags.url,
        auth=Login() if flags.login == "true" else None,
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
