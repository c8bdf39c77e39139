"""Tool calls through the stock Python SDK 1.x."""

from datetime import timedelta
from functools import partial

from common import (
    call_tool,
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
from login import CALLBACK, Browser, Storage
from mcp import ClientSession, StdioServerParameters
from mcp.client.auth import OAuthClientProvider
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp.shared.auth import OAuthClientMetadata
from mcp.types import CreateMessageResult, ElicitResult, ListRootsResult, Root, ServerNotification, TextContent


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
    if isinstance(message, ServerNotification):
        say_change(message.root)


def login():
    """The SDK's provider, which signs in where the server asks for it."""
    browser = Browser(lambda answer: (answer["code"], answer["state"]))
    metadata = OAuthClientMetadata(client_name="e2e", redirect_uris=[CALLBACK], token_endpoint_auth_method="none")
    return OAuthClientProvider(flags.url, metadata, Storage(), browser.redirect, browser.callback)


def connection(http):
    if parameters := program():
        return stdio_client(StdioServerParameters(**parameters))
    return streamable_http_client(flags.url, http_client=http)


async def session():
    async with (
        create_mcp_http_client(auth=login() if flags.login == "true" else None) as http,
        connection(http) as (reader, writer, *_),
        ClientSession(
            reader,
            writer,
            sampling_callback=sample,
            elicitation_callback=elicit,
            list_roots_callback=roots,
            logging_callback=log,
            message_handler=receive,
        ) as client,
    ):
        say_connected((await client.initialize()).protocolVersion)

        async def call(tool, arguments):
            limit = deadline and timedelta(seconds=deadline)
            calling = partial(client.call_tool, read_timeout_seconds=limit, progress_callback=on_progress)
            result = await call_tool(calling, tool, arguments)
            say_result(result.isError, result.content[0].text)

        await make_calls(
            call,
            level=client.set_logging_level,
            subscribe=client.subscribe_resource,
            list=lambda _: client.list_tools(),
        )
        await linger()


main(session)
