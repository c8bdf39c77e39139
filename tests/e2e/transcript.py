"""Records one exchange of each dialect as sent on the wire, into docs/dialects/transcripts/.

    tests/e2e/.venvs/driver/bin/python tests/e2e/transcript.py [DIALECT…]

Heads and bodies are unchanged, except that ids, secrets, ports and dates get short names. The framing of bodies,
Content-Length and Mcp-Resume are left out. `cases/test_transcripts.py` records again and compares.
"""

import asyncio
import sys
from contextlib import asynccontextmanager
from pathlib import Path

from harness import stack
from harness.dialects import ResumableRequests, ResumableStreams, ResumeTokens, StreamUrl
from harness.raw import call
from harness.record import Recorder, render

PLACE = stack.ROOT.parent.parent / "docs" / "dialects" / "transcripts"

OPENING = ["The client initialises", "It has initialised"]


async def resumable_requests(port):
    client = await ResumableRequests.connect(port)
    await client.begin(call(1, "long", steps=3, interval_ms=300))
    await client.until_progress(1)
    client.drop()
    await client.look()
    await client.resume()
    await client.rest()
    return [*OPENING, "A call; its connection is lost", "How is it doing?", "The call is resumed, under its own id"]


async def resumable_streams(port):
    client = await ResumableStreams.connect(port)
    await client.begin(call(1, "long", steps=3, interval_ms=300))
    await client.until_progress(1)
    client.drop()
    await client.look()
    await client.resume()
    await client.rest()
    return [*OPENING, "A call; its connection is lost", "How is its stream doing?", "The stream is resumed"]


async def stream_url(port):
    client = await StreamUrl.connect(port)
    await client.call(call(1, "ask", kind="sampling"))
    return [
        *OPENING,
        "A call; the server asks something, so its turn ends",
        "The client comes back to the stream's URL: it is its turn",
        "It gives its answer there; what comes is the next turn",
    ]


async def resume_tokens(port):
    client = await ResumeTokens.connect(port)
    await client.call(call(1, "long", steps=2, interval_ms=1300))
    slices = ["A call that takes longer than a slice", "The same call with the token", "Again, and this is the result"]
    return [*OPENING, *slices]


DIALECTS = {
    "resumable-requests": (resumable_requests, {}),
    "resumable-streams": (resumable_streams, {}),
    "stream-url": (stream_url, {"DIALECTS__STREAM_URL_TURNS": "all"}),
    "resume-tokens": (resume_tokens, stack.SLICES),
}


def place(dialect):
    return PLACE / f"{dialect}.http"


@asynccontextmanager
async def running(server_name, **settings):
    """The port of a proxy in front of a server, both for one recording."""
    server = stack.start_server(server_name)
    try:
        proxy = stack.start_proxy((await asyncio.to_thread(server.wait)).found["port"], **settings)
        try:
            yield (await asyncio.to_thread(proxy.wait)).found["port"]
        finally:
            proxy.stop()
    finally:
        server.stop()


async def record(dialect):
    """The text of one dialect's exchange, newly recorded."""
    exchange, settings = DIALECTS[dialect]
    async with running("typescript-v1", **settings) as port, Recorder(port) as recorder:
        titles = await exchange(recorder.port)
        return await render(recorder.kept, titles)


async def main(names):
    PLACE.mkdir(parents=True, exist_ok=True)
    for dialect in names or DIALECTS:
        place(dialect).write_text(await record(dialect))
        print(Path(place(dialect)).relative_to(stack.ROOT.parent.parent))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
