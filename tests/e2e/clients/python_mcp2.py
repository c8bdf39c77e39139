"""Tool calls through the stock Python SDK 2.x."""

import asyncio

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
from login import CALLBACK, Browser, Storage
from mcp import Client, StdioServerParameters
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp.shared.auth import OAuthClientMetadata
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


# The event loop keeps no reference of its own to a task.
subscriptions = []


async def listen(client):
    """Opens a subscription to the list of tools, for the rest of the session; `receive` gets its notifications."""
    opened = asyncio.Event()

    async def follow():
        async with client.listen(tools_list_changed=True) as changes:
            opened.set()
            async for _ in changes:
                pass

    following, opening = asyncio.create_task(follow()), asyncio.create_task(opened.wait())
    await asyncio.wait({following, opening}, return_when=asyncio.FIRST_COMPLETED)
    if not opened.is_set():
        await following
    subscriptions.append(following)


def server():
    """What the client connects to: a program, or the URL, with the SDK's provider for a server that asks for a sign-in."""
    if parameters := program():
        return StdioServerParameters(**parameters)
    if flags.login == "false":
        return flags.url
    browser = Browser(lambda answer: AuthorizationCodeResult(**answer))
    metadata = OAuthClientMetadata(client_name="e2e", redirect_uris=[CALLBACK], token_endpoint_auth_method="none")
    provider = OAuthClientProvider(flags.url, metadata, Storage(), browser.redirect, browser.callback)
    return streamable_http_client(flags.url, http_client=create_mcp_http_client(auth=provider))


async def session():
    async with Client(
        server(),
        mode="legacy" if flags.mode == "legacy" else "auto",
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
            listen=lambda _: listen(client),
        )
        await linger()


main(session)
