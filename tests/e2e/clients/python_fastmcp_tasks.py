"""Tool calls through the stock FastMCP client with its tasks package, whose import declares tasks, at 2026-07-28."""

import asyncio

import fastmcp_tasks
from common import flags, linger, main, make_calls, on_progress, say, say_connected, say_result
from fastmcp import Client
from fastmcp.client.elicitation import ElicitResult

VALUES = {"boolean": True, "number": 5, "integer": 5}


async def elicit(message, response_type, params, context):
    say("asked", kind="elicitation")
    properties = params.requested_schema["properties"]
    content = {name: VALUES.get(field["type"], "elicited") for name, field in properties.items()}
    return ElicitResult(action="accept", content=content)


async def session():
    client = Client(flags.url, mode="auto", elicitation_handler=elicit, progress_handler=on_progress)
    async with client:
        say_connected(client.protocol_version)

        async def call(tool, arguments):
            result = await client.call_tool(tool, arguments, raise_on_error=False)
            say_result(result.is_error, result.content[0].text, result.structured_content)

        async def at_once(calls):
            running = [client.call_tool(asked["tool"], asked["args"], raise_on_error=False) for asked in calls]
            for result in await asyncio.gather(*running):
                say_result(result.is_error, result.content[0].text)

        async def cancel(asked):
            task = await fastmcp_tasks.call_tool_task(client, asked["tool"], asked["args"])
            say("task", id=task.task_id)
            await task.cancel()
            await task.result()

        await make_calls(call, at_once=at_once, cancel=cancel)
        await linger()


main(session)
