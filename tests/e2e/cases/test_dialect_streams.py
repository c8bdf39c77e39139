"""Resumable streams (#899): creation and end, `stream/poll`, the order of a resume's messages, the standalone stream."""

import pytest

from harness.checks import assert_runs
from harness.dialects import ResumableStreams
from harness.dialects.resumable_streams import CREATE, END
from harness.dialects.steps import cut_off, until
from harness.dialects.wire import reply
from harness.raw import ask, call
from harness.relay import Cut, Relay

pytestmark = pytest.mark.anyio

SERVERS = ["typescript-v1", "python-mcp1"]

on_every_server = pytest.mark.parametrize("server", SERVERS)


@on_every_server
async def test_poll_while_it_runs(server, servers, proxies, key):
    client = await ResumableStreams.connect(proxies[server])
    await client.begin(call(7, "ask", kind="sampling", delay_ms=2500, key=key))
    await client.until_progress(1)
    client.drop()
    assert await client.poll() == ("live", True, False, False)
    assert await client.poll(confirm=True) == ("live", False, False, False)
    assert await client.poll() == ("live", True, False, False)
    await client.resume()
    await client.rest()
    assert (client.progress, client.text) == ([1], "answered sampled")
    assert_runs(servers[server], key)


@on_every_server
async def test_poll_after_the_end(server, servers, proxies, key):
    client = await cut_off(ResumableStreams, proxies[server], key)
    await until(client.finished)
    assert await client.poll() == ("completed", True, False, False)
    await client.resume()
    await client.rest()
    assert client.progress == [1, 2, 3, 4]
    assert await client.poll(confirm=True) == ("completed", False, False, False)
    assert_runs(servers[server], key)


@on_every_server
async def test_poll_of_a_call_that_failed(server, proxies):
    client = await ResumableStreams.connect(proxies[server])
    await client.call({"jsonrpc": "2.0", "id": "seven", "method": "no/such", "params": {}})
    assert client.methods == [CREATE, None, END]
    assert await client.poll() == ("completed", True, False, True)
    # A confirmed message is no longer pending.
    assert await client.poll(confirm=True) == ("completed", False, False, False)
    await client.call(call(8, "no-such-tool"))
    assert client.answer["result"]["isError"] is True
    assert await client.poll() == ("completed", True, False, False)


@on_every_server
async def test_a_question_that_was_not_answered(server, servers, proxies, key):
    """`hasRequest` covers pending requests of the server; a confirmed one does not count."""
    client = await ResumableStreams.connect(proxies[server])
    client.answers_at_once = False
    await client.begin(call(7, "ask", kind="sampling", key=key))
    question = await client.until_asked()
    client.drop()
    assert await client.poll() == ("live", True, True, False)
    assert await client.poll(confirm=True) == ("live", False, False, False)
    assert await client.post(reply(question)) == 202
    await until(client.finished)
    assert await client.poll() == ("completed", True, False, False)
    await client.resume(confirm=False)
    messages = await client.rest()
    assert [message.get("method") for message in messages] == [CREATE, "notifications/progress", None, END, None]
    assert client.text == "answered sampled"
    assert_runs(servers[server], key)


@on_every_server
async def test_the_end_and_then_the_answer_to_the_resume(server, servers, proxies, key):
    """The order: missed events, the call's response, the end, and the resume's own empty result without an event ID. Then the close."""
    client = await cut_off(ResumableStreams, proxies[server], key, steps=3)
    await until(client.finished)
    await client.resume()
    before = len(client.got)
    messages = await client.rest()
    assert [message.get("method") for message in messages] == [
        "notifications/progress",
        "notifications/progress",
        None,
        END,
        None,
    ]
    assert [message.get("id") for message in messages] == [None, None, 7, None, client.sent_id]
    assert messages[-1]["result"] == {}
    ids = [got.id for got in client.got[before:]]
    assert None not in ids[:-1]
    assert ids[-1] is None
    assert_runs(servers[server], key)


@on_every_server
async def test_the_same_while_the_call_goes_on(server, servers, proxies, key):
    client = await cut_off(ResumableStreams, proxies[server], key)
    await client.resume()
    await client.rest()
    assert client.methods[-3:] == [None, END, None]
    assert client.got[-1].message == {"jsonrpc": "2.0", "id": client.sent_id, "result": {}}
    assert_runs(servers[server], key)


@on_every_server
async def test_a_resume_without_an_id(server, proxies, key):
    """The proposal's own example has no id, but a request must have one, or a refusal could not be addressed."""
    client = await cut_off(ResumableStreams, proxies[server], key)
    params = {"streamId": client.stream["streamId"], "resumeToken": client.token}
    body = {"jsonrpc": "2.0", "method": "stream/resume", "params": params}
    answer = await ask(proxies[server], body=body, **client.session)
    assert answer.status == 400
    await client.resume()
    await client.rest()
    assert client.progress == [1, 2, 3, 4]


async def test_the_id_of_a_stream_opens_nothing(proxies, key):
    """The id may be shared: it is neither the token nor a part of it or of the event IDs."""
    port = proxies["typescript-v1"]
    client = await cut_off(ResumableStreams, port, key)
    stream_id = client.stream["streamId"]
    status, answer = await client.look(token=stream_id)
    assert (status, answer["error"]["code"]) == (200, -32602)
    refused = await ask(port, method="GET", **client.session | {"last_event_id": stream_id})
    assert refused.status == 400


async def test_the_standalone_stream(proxies, key):
    """No request created it; messages sent there without a reader are resumed like a call's."""
    port = proxies["typescript-v1"]
    client = await ResumableStreams.connect(port)
    client.body = {"id": None}
    await client.open(method="GET")
    await client.until(lambda message: message.get("method") == CREATE)
    assert "requestId" not in client.standalone
    client.drop()
    # Sent by a call, but not on its stream.
    caller = ResumableStreams(port, client.session)
    await caller.call(call(7, "announce", steps=3, interval_ms=50, key=key))
    assert caller.methods == [CREATE, None, END]
    await client.resume(of=client.standalone["streamId"], token=client.standalone["resumeToken"])
    await client.until(lambda message: message.get("params", {}).get("data") == 3)
    client.drop()
    logged = [got.message["params"]["data"] for got in client.got if got.method == "notifications/message"]
    assert logged == [1, 2, 3]


async def test_a_server_that_is_silent_until_the_end(servers, proxies, key):
    server = "typescript-v1-json"
    async with Relay(proxies[server], Cut("event", 1)) as relay:
        client = await ResumableStreams.connect(relay.port)
        await client.call(call(7, "long", steps=1, interval_ms=1500, key=key))
        assert client.methods == [CREATE, None, END, None]
        assert [exchange.method for exchange in relay.resumes] == ["POST"]
        assert_runs(servers[server], key)


async def test_an_answer_at_once_creates_no_stream(proxies, key):
    client = await ResumableStreams.connect(proxies["typescript-v1-json"])
    await client.call(call(7, "quick", key=key))
    assert (client.methods, client.text, client.stream) == ([None], "quick", None)
