"""Shared parts of the Python clients of the suite: flags, JSON lines, calls with a limit."""

import argparse
import asyncio
import json
import os
import sys

parser = argparse.ArgumentParser()
parser.add_argument("--url", required=True)
parser.add_argument("--tool", required=True)
parser.add_argument("--args", type=json.loads, default={})
parser.add_argument("--mode", choices=["legacy", "modern", "auto"], default="legacy")
parser.add_argument("--timeout-ms", type=int, default=30_000)
parser.add_argument("--linger-ms", type=int, default=200)
parser.add_argument("--resume-tokens", choices=["true", "false"], default="false")
parser.add_argument("--deadline-ms", type=int)
parser.add_argument("--then", choices=["true", "false"], default="false")
parser.add_argument("--login", choices=["true", "false"], default="false")
flags = parser.parse_args()
# The SDK's own limit for each call, in seconds, or `None`.
deadline = flags.deadline_ms and flags.deadline_ms / 1000


def program():
    """Returns the parameters of a transport on stdio for `stdio:["program",…]`, or `None` for any other URL."""
    if not flags.url.startswith("stdio:"):
        return None
    command, *arguments = json.loads(flags.url.removeprefix("stdio:"))
    return {"command": command, "args": arguments, "env": dict(os.environ)}


def say(event, **fields):
    print(json.dumps({"event": event, **fields}), flush=True)


async def on_progress(n, total=None, message=None):
    say("progress", n=int(n))


def say_result(failed, text, structured=None):
    """Prints the outcome of the call."""
    if failed:
        say("error", message=text)
    else:
        say("result", text=text, **({} if structured is None else {"structured": structured}))


async def call_tool(call, tool, arguments):
    """Runs `call(tool, arguments)`; with --resume-tokens again for each token in a result."""
    given = arguments
    while True:
        result = await call(tool, given)
        token = (result.model_extra or {}).get("nextResumeToken")
        if flags.resume_tokens == "false" or token is None:
            return result
        say("slice")
        given = {**arguments, "resumeToken": token}


def say_change(notification):
    """Tells of a notification that lists or resources may have changed."""
    _, subject, *what = notification.method.split("/")
    if what == ["list_changed"]:
        say("changed", list=subject)
    elif what == ["updated"]:
        say("updated", uri=str(notification.params.uri))


async def make_calls(call, **settings):
    """Makes the call of the flags and, with --then, those of standard input; `call(tool, arguments)` makes one and prints its result.

    `settings`: what else standard input may ask for, by name.
    """
    if flags.then == "false":
        await call(flags.tool, flags.args)
        return
    asked = {"tool": flags.tool, "args": flags.args}
    while asked:
        limit = asyncio.get_running_loop().call_later(flags.timeout_ms / 1000, leave_at_limit)
        try:
            [setting] = [name for name in settings if name in asked] or [None]
            if setting:
                await settings[setting](asked[setting])
                say("result", text=setting)
            else:
                await call(asked["tool"], asked["args"])
        except Exception as error:
            say("error", message=repr(error))
        limit.cancel()
        line = await asyncio.to_thread(sys.stdin.readline)
        asked = json.loads(line) if line else None


def leave_at_limit():
    say("error", message="timeout")
    leave()


def leave():
    say("closed")
    # Unfinished work of the SDK must not keep the process alive.
    os._exit(0)


connected = asyncio.Event()


def say_connected(protocol):
    """Prints that the session is open; the limit counts from now on."""
    say("connected", protocol=protocol)
    connected.set()


def main(session):
    """Runs `session()`, which connects, calls, prints the results and lingers; exits then, or at the limit."""

    async def limited():
        call = asyncio.create_task(session())
        started = asyncio.create_task(connected.wait())
        await asyncio.wait({call, started}, return_when=asyncio.FIRST_COMPLETED)
        # Not cancelled at the limit, since an SDK may take long to cancel. With --then each call has a limit of its own.
        limit = (flags.timeout_ms + flags.linger_ms) / 1000 if flags.then == "false" else None
        await asyncio.wait({call}, timeout=limit)
        if not call.done():
            leave_at_limit()
        elif error := call.exception():
            say("error", message=repr(error))
        leave()

    asyncio.run(limited())


async def linger():
    await asyncio.sleep(flags.linger_ms / 1000)
