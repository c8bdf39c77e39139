"""The scope and lifetime of a resume token, for `requests/…` and `stream/…` alike."""

import asyncio

import pytest

from harness import stack
from harness.checks import assert_runs
from harness.dialects import Refused, ResumableRequests, ResumableStreams
from harness.dialects.steps import assert_token_refused, cut_off, until
from harness.dialects.wire import is_response
from harness.raw import ask, call, open_session
from harness.relay import Relay
from harness.stack import counters, eventually

pytestmark = pytest.mark.anyio

DIALECTS = [ResumableRequests, ResumableStreams]
SERVERS = ["typescript-v1", "python-mcp1"]

everywhere = [
    pytest.mark.each_value,
    pytest.mark.parametrize("dialect", DIALECTS),
    pytest.mark.parametrize("server", SERVERS),
]


def on_every_server(test):
    for mark in everywhere:
        test = mark(test)
    return test


@on_every_server
async def test_what_does_not_fit_is_refused_alike(dialect, server, proxies, key):
    """An unknown token, one of another call, one bit changed, another id, another principal: the same response, which reveals nothing."""
    port = proxies[server]
    mine = {"authorization": "Bearer mine"}
    client = await cut_off(dialect, port, key, steps=40, interval_ms=100, **mine)
    other = await cut_off(dialect, port, key, steps=40, interval_ms=100, request_id=8, **mine)
    token = client.token
    off = token[:-1] + ("A" if token[-1] != "A" else "B")
    said = []
    for wrong in ("made-up", other.token, off, token[1:], token + "A"):
        said += await assert_token_refused(client, token=wrong)
    said += await assert_token_refused(client, of=8 if dialect is ResumableRequests else other.stream["streamId"])
    foreign = await open_session(port, authorization="Bearer another's")
    said += await assert_token_refused(client.twin(), session=foreign)
    assert all(error == said[0] for error in said), said
    assert token not in str(said)
    # The token still opens the call for its own client.
    await client.resume(session=client.session | mine)
    await client.until_progress(3)
    client.drop()


@on_every_server
async def test_max_wait_is_the_end_of_the_call(dialect, server, servers, start, key):
    """No client returned: the server got a cancel, the token opens nothing, and the event IDs give the error."""
    proxy = start(stack.start_proxy, servers[server], STREAMS__MAX_WAIT_SECS=1)
    client = await cut_off(dialect, proxy.found["port"], key, steps=300, interval_ms=100)
    await eventually(lambda: counters(servers[server], key)["cancelled"] == 1)
    await assert_token_refused(client)
    answer = await ask(proxy.found["port"], method="GET", **client.session | {"last_event_id": client.cursor})
    responses = [message for message in await answer.messages() if is_response(message)]
    assert [(message["id"], message["error"]["code"]) for message in responses] == [(7, -32011)]


@on_every_server
async def test_asking_restarts_the_wait(dialect, server, servers, start, key):
    """A client that only asks for the status keeps a call alive that takes three times the longest wait."""
    proxy = start(stack.start_proxy, servers[server], STREAMS__MAX_WAIT_SECS=2)
    client = await cut_off(dialect, proxy.found["port"], key, steps=12, interval_ms=500)
    await until(client.finished)
    await client.resume()
    await client.rest()
    assert client.progress == list(range(1, 13))
    assert_runs(servers[server], key)


@on_every_server
async def test_resumed_twice_one_after_the_other(dialect, server, servers, proxies, key):
    """Unconfirmed events are sent again, confirmed ones are not, after any number of resumes."""
    client = await cut_off(dialect, proxies[server], key, seen=2)
    await until(client.finished)
    first, second, third = client.twin(), client.twin(), client.twin()
    await first.resume()
    messages = await first.rest()
    assert first.progress == [3, 4]
    # Nothing is confirmed by this resume, but the first one confirmed two events.
    await second.resume(confirm=False)
    await second.rest()
    assert second.progress == [3, 4]
    assert [got.id for got in second.got if got.id] == [got.id for got in first.got if got.id]
    assert len(second.got) == len(messages)
    # A later cursor leaves fewer events.
    third.cursor = next(got.id for got in first.got if got.message.get("params", {}).get("progress") == 3)
    await third.resume()
    await third.rest()
    assert third.progress == [4]
    assert_runs(servers[server], key)


@on_every_server
async def test_without_a_confirmation_everything_comes_again(dialect, server, servers, proxies, key):
    client = await cut_off(dialect, proxies[server], key, seen=3)
    await client.resume(confirm=False)
    await client.rest()
    assert client.progress == [1, 2, 3, 1, 2, 3, 4]
    assert client.text == "done 4"
    assert_runs(servers[server], key)


@on_every_server
async def test_of_two_readers_the_newer_one_reads_on(dialect, server, servers, proxies, key):
    """The older reader's connection ends gracefully, without the response."""
    older = await cut_off(dialect, proxies[server], key, steps=8, interval_ms=300)
    newer = older.twin()
    await older.resume()
    await older.until_progress(3)
    newer.cursor = older.cursor
    await newer.resume()
    await newer.rest()
    await older.rest()
    assert older.answer is None
    assert newer.text == "done 8"
    assert older.progress == list(range(1, len(older.progress) + 1))
    assert newer.progress == list(range(4, 9))
    assert_runs(servers[server], key)


@pytest.mark.parametrize("into", ["another session", "a session that declared nothing", "no session"])
@on_every_server
async def test_the_token_outlives_its_session(dialect, server, into, servers, proxies, key):
    """The client has initialised anew, or not at all: its token and its principal are enough."""
    port = proxies[server]
    client = await cut_off(dialect, port, key)
    session = {
        "another session": (await dialect.connect(port)).session,
        "a session that declared nothing": await open_session(port),
        "no session": {"mcp_protocol_version": "2025-11-25"},
    }[into]
    status, _ = await client.look(session=session)
    assert status == 200
    await client.resume(session=session)
    await client.rest()
    assert (client.progress, client.text) == ([1, 2, 3, 4], "done 4")
    assert_runs(servers[server], key)


@on_every_server
async def test_a_cancelled_call_is_not_resumed(dialect, server, servers, proxies, key):
    port = proxies[server]
    client = await cut_off(dialect, port, key, steps=300, interval_ms=100)
    cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}
    assert await client.post(cancel) == 202
    await assert_token_refused(client)
    await eventually(lambda: counters(servers[server], key)["cancelled"] == 1)


@on_every_server
async def test_the_end_of_a_session_is_the_end_of_its_tokens(dialect, server, proxies, key):
    port = proxies[server]
    client = await cut_off(dialect, port, key, steps=300, interval_ms=100)
    other = await dialect.connect(port)
    ended = await ask(port, method="DELETE", **client.session)
    assert ended.status in (200, 204)
    await ended.body()
    await assert_token_refused(client, session=other.session)


@on_every_server
async def test_a_resume_that_takes_no_stream(dialect, server, proxies, key):
    client = await cut_off(dialect, proxies[server], key)
    with pytest.raises(Refused) as refused:
        await client.resume(accept="application/json")
    assert refused.value.status == 406
    # The refused request had no effect.
    await client.resume()
    await client.rest()
    assert client.progress == [1, 2, 3, 4]


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_not_in_a_batch(dialect, proxies, key):
    port = proxies["typescript-v1"]
    client = await dialect.connect(port, revision="2025-03-26")
    await client.begin(call(7, "long", steps=4, interval_ms=200, key=key))
    await client.until_progress(1)
    client.drop()
    method, params = {
        ResumableRequests: ("requests/getStatus", {"requestId": 7, "resumeToken": client.token}),
        ResumableStreams: ("stream/poll", {"streamId": "?", "resumeToken": client.token}),
    }[dialect]
    batch = [{"jsonrpc": "2.0", "id": n, "method": what, "params": params} for n, what in enumerate((method, "ping"))]
    refused = (await (await ask(port, body=batch, **client.session)).messages())[-1]
    refused = refused[0] if isinstance(refused, list) else refused
    assert refused["error"]["code"] == -32600


@pytest.mark.each_value
@pytest.mark.parametrize("server", [*SERVERS, "typescript-v1-stateless"])
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_the_server_never_hears_of_it(dialect, server, servers, start, key):
    """No capability, no method, no session of the proxy's reaches the server; a session of the server's own passes through."""
    async with Relay(servers[server]) as upstream:
        proxy = await asyncio.to_thread(start, stack.start_proxy, upstream.port)
        client = await cut_off(dialect, proxy.found["port"], key)
        await client.look()
        await client.resume()
        await client.rest()
        assert client.text == "done 4"
        sent = [message for exchange in upstream.exchanges for message in exchange.messages]
        assert [message["method"] for message in sent if "method" in message and message["method"] != "ping"] == [
            "initialize",
            "notifications/initialized",
            "tools/call",
        ]
        assert set(sent[0]["params"]["capabilities"]) == {"sampling", "elicitation", "roots"}
        named = {exchange.headers.get("mcp-session-id") for exchange in upstream.exchanges}
        if server == "typescript-v1-stateless":
            assert client.session["mcp_session_id"].startswith("mr1.")
            assert named == {None}
        else:
            assert named == {None, client.session["mcp_session_id"]}


@on_every_server
async def test_who_declares_nothing_gets_nothing(dialect, server, proxies, key):
    client = await dialect.connect(proxies[server], declares={})
    await client.call(call(7, "long", steps=2, interval_ms=100, key=key))
    assert client.methods == ["notifications/progress", "notifications/progress", None]


SWITCH = {ResumableRequests: "DIALECTS__RESUMABLE_REQUESTS", ResumableStreams: "DIALECTS__RESUMABLE_STREAMS"}


@on_every_server
async def test_switched_off(dialect, server, servers, start, key):
    """The dialect's methods then belong to the server, like any unknown method."""
    proxy = start(stack.start_proxy, servers[server], **{SWITCH[dialect]: "false"})
    client = await dialect.connect(proxy.found["port"])
    await client.call(call(7, "long", steps=2, interval_ms=100, key=key))
    assert client.methods == ["notifications/progress", "notifications/progress", None]
    method = {ResumableRequests: "requests/getStatus", ResumableStreams: "stream/poll"}[dialect]
    _, answer = await client.request(method, 8, requestId=7, streamId="?", resumeToken="?")
    unknown = {"typescript-v1": -32601, "python-mcp1": -32602}[server]
    assert (answer["id"], answer["error"]["code"]) == (8, unknown)
    assert answer["error"]["message"] in ("Method not found", "Invalid request parameters")
