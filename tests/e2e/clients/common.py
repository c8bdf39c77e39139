"""Shared parts of the Python clients of the suite: flags, JSON lines, one call with a limit."""

import argparse
import asyncio
import json
import os

parser = argparse.ArgumentParser()
parser.add_argument("--url", required=True)
parser.add_argument("--tool", required=True)
parser.add_argument("--args", type=json.loads, default={})
parser.add_argument("--mode", choices=["legacy", "modern"], default="legacy")
parser.add_argument("--timeout-ms", type=int, default=30_000)
parser.add_argument("--linger-ms", type=int, default=200)
parser.add_argument("--resume-tokens", choices=["true", "false"], default="false")
flags = parser.parse_args()


def say(event, **fields):
    print(json.dumps({"event": event, **fields}), flush=True)


async def on_progress(n, total=None, message=None):
    say("progress", n=int(n))


def say_result(failed, text):
    """Prints the outcome of the call."""
    if failed:
        say("error", message=text)
    else:
        say("result", text=text)


async def call_tool(call):
    """Runs `call(tool, arguments)`; with --resume-tokens again for each token in a result."""
    given = flags.args
    while True:
        result = await call(flags.tool, given)
        token = (result.model_extra or {}).get("nextResumeToken")
        if flags.resume_tokens == "false" or token is None:
            return result
        say("slice")
        given = {**flags.args, "resumeToken": token}


connected = asyncio.Event()


def say_connected(protocol):
    """Prints that the session is open; the limit counts from now on."""
    say("connected", protocol=protocol)
    connected.set()


def main(session):
    """Runs `session()`, which connects, calls, prints the result and lingers; exits then, or at the limit."""

    async def limited():
        call = asyncio.create_task(session())
        started = asyncio.create_task(connected.wait())
        await asyncio.wait({call, started}, return_when=asyncio.FIRST_COMPLETED)
        # Not cancelled at the limit, since an SDK may take long to cancel.
        await asyncio.wait({call}, timeout=(flags.timeout_ms + flags.linger_ms) / 1000)
        if not call.done():
            say("error", message="timeout")
        elif error := call.exception():
            say("error", message=repr(error))
        say("closed")
        # Unfinished work of the SDK must not keep the process alive.
        os._exit(0)

    asyncio.run(limited())


async def linger():
    await asyncio.sleep(flags.linger_ms / 1000)
