"""A call through each resumption proposal completes after a cut at any place: all events once, in order, by one run of the tool."""

import pytest

from harness import stack
from harness.checks import assert_got, assert_runs
from harness.dialects import ResumableRequests, ResumableStreams, ResumeTokens, StreamUrl
from harness.dialects.resumable_requests import POLICY
from harness.dialects.resumable_streams import CREATE, END
from harness.raw import call
from harness.relay import Cut, Relay

pytestmark = pytest.mark.anyio

STEPS, INTERVAL_MS = 5, 150

CUTS = {
    "uncut": None,
    "after-event": Cut("event", 2),
    "before-event": Cut("event", 0),
    "in-the-response": Cut("final"),
    "after-event-fin": Cut("event", 1, how="fin"),
    "away": Cut("event", 1, away=1.5),
    "repeatedly": Cut("event", 1, times=4, resumes=True),
}

# The proposals do not cover these cuts. Only the transport helps: the same request again, which is one call only in a session
# that identifies the client.
EARLY = {"before-the-head": Cut("request"), "after-the-head": Cut("head")}

SESSIONS = ["typescript-v1", "python-mcp1", "fastmcp"]
SESSIONLESS = "typescript-v1-stateless"


def cases(dialect):
    for server in SESSIONS:
        for name, cut in (CUTS | EARLY).items():
            yield pytest.param(server, cut, id=f"{server}-{name}")
    for name, cut in CUTS.items():
        yield pytest.param(SESSIONLESS, cut, id=f"{SESSIONLESS}-{name}")
    # A declared capability brings a session of the proxy's own, a `Link` needs none.
    if dialect.declares:
        for name, cut in EARLY.items():
            yield pytest.param(SESSIONLESS, cut, id=f"{SESSIONLESS}-{name}")
    elif dialect is StreamUrl:
        yield pytest.param(SESSIONLESS, EARLY["after-the-head"], id=f"{SESSIONLESS}-after-the-head")


async def completes(dialect, server, cut, servers, proxies, key):
    async with Relay(proxies[server], cut) as relay:
        client = await dialect.connect(relay.port)
        await client.call(call(7, "long", steps=STEPS, interval_ms=INTERVAL_MS, key=key))
        assert_got(client, STEPS, f"done {STEPS}")
        assert relay.cuts == (cut.times if cut else 0), relay.report()
        assert bool(relay.resumes) == bool(cut) or cut in EARLY.values(), relay.report()
        assert_runs(servers[server], key)
    return client, relay


@pytest.mark.each_value
@pytest.mark.parametrize("server, cut", list(cases(ResumableRequests)))
async def test_resumable_requests(server, cut, servers, proxies, key):
    client, relay = await completes(ResumableRequests, server, cut, servers, proxies, key)
    assert client.methods == [POLICY, *["notifications/progress"] * STEPS, None]
    assert client.policy["requestId"] == 7
    assert (client.policy["minWait"], client.policy["maxWait"]) == (1, 600)
    # Once there is a policy, its client resumes by it alone.
    if cut not in (None, CUTS["before-event"], *EARLY.values()):
        assert [exchange.method for exchange in relay.resumes] == ["POST"] * len(relay.resumes)


@pytest.mark.each_value
@pytest.mark.parametrize("server, cut", list(cases(ResumableStreams)))
async def test_resumable_streams(server, cut, servers, proxies, key):
    client, _ = await completes(ResumableStreams, server, cut, servers, proxies, key)
    resumed = len(client.resumed)
    assert client.methods == [CREATE, *["notifications/progress"] * STEPS, None, END, *[None] * resumed]
    assert client.stream["requestId"] == 7
    assert client.stream["resumeInterval"] == {"min": 1, "max": 600}
    assert client.ended == [client.stream["streamId"]]
    # Only the last of the resumes can have reached its own response.
    assert [message["result"] for message in client.resumed.values()] == [{}] * resumed
    assert resumed <= 1


@pytest.mark.each_value
@pytest.mark.parametrize("server, cut", list(cases(StreamUrl)))
async def test_stream_url(server, cut, servers, proxies, key):
    client, relay = await completes(StreamUrl, server, cut, servers, proxies, key)
    assert client.methods == [*["notifications/progress"] * STEPS, None]
    assert client.url is not None
    if cut not in (None, EARLY["before-the-head"]):
        assert {exchange.path for exchange in relay.resumes} == {client.url}


# The Python SDKs generate an output schema for `long`, and a tool with one is never sliced.
SLICED = [("typescript-v1", "long"), ("python-mcp1", "plain")]

TOKEN_CUTS = CUTS | EARLY | {"repeatedly": Cut("event", 1, times=4)}


def token_cases():
    for name in TOKEN_CUTS:
        for server, tool in SLICED:
            yield pytest.param(server, tool, "params", name, id=f"{server}-params-{name}")
    # In the arguments, as a model would put it.
    for name in ("uncut", "after-event"):
        yield pytest.param("typescript-v1", "long", "arguments", name, id=f"typescript-v1-arguments-{name}")
    yield pytest.param("fastmcp", "plain", "arguments", "uncut", id="fastmcp-arguments-uncut")


@pytest.mark.each_value
@pytest.mark.parametrize("server, tool, where, name", list(token_cases()))
async def test_resume_tokens(server, tool, where, name, servers, start, key):
    """Slices of a second each; a cut may make a slice longer, so the call outlasts all of them."""
    cut = TOKEN_CUTS[name]
    proxy = start(stack.start_proxy, servers[server], **stack.SLICES)
    async with Relay(proxy.found["port"], cut) as relay:
        client = await ResumeTokens.connect(relay.port)
        client.where = where
        await client.call(call(7, tool, steps=10, interval_ms=500, key=key))
        assert_got(client, 10, "done 10")
        assert relay.cuts == (cut.times if cut else 0), relay.report()
        assert_runs(servers[server], key)
    assert client.slices or name == "repeatedly"
    assert len({interim["nextResumeToken"] for interim in client.slices}) <= 1
    for interim in client.slices:
        assert interim["content"] == []
        assert [value for name, value in interim["_meta"].items() if name.endswith("/ttl")] == [600]
