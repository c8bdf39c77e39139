"""Tool calls through the stock Python SDK of any version. Any error that the SDK reports outside a call counts as the loss of the server."""

import logging

from common import flags, leave, linger, main, make_calls, on_progress, say, say_connected, say_result


def report(what):
    say("error", message=f"reported: {what}")
    leave()


class Reporter(logging.Handler):
    """Reports what the SDK logs as an error."""

    def emit(self, record):
        report(self.format(record))


async def receive(message):
    if isinstance(message, Exception):
        report(repr(message))


def sessions():
    """Returns a context that connects, and the one of the session that it gives."""
    try:
        from mcp import Client
    except ImportError:
        pass
    else:
        return Client(flags.url, mode="legacy", message_handler=receive), None
    from mcp import ClientSession
    from mcp.client import streamable_http

    connect = getattr(streamable_http, "streamable_http_client", None) or streamable_http.streamablehttp_client
    return connect(flags.url), lambda reader, writer, *_: ClientSession(reader, writer, message_handler=receive)


async def calls(client, protocol):
    say_connected(protocol)

    async def call(tool, arguments):
        result = await client.call_tool(tool, arguments, progress_callback=on_progress)
        failed = result.is_error if hasattr(result, "is_error") else result.isError
        say_result(failed, result.content[0].text)
        await client.list_tools()

    await make_calls(call)
    await linger()


async def session():
    logging.getLogger("mcp").addHandler(Reporter(logging.ERROR))
    connection, session_of = sessions()
    async with connection as opened:
        if session_of is None:
            await calls(opened, opened.protocol_version)
        else:
            async with session_of(*opened) as client:
                await calls(client, (await client.initialize()).protocolVersion)


main(session)
