"""Bare HTTP in front of a real server: repeated requests, late refusals, cancel, the end of a session."""

import pytest

from harness import stack
from harness.checks import assert_runs
from harness.raw import ask, call, open_session, send, until_progress
from harness.stack import counters, eventually, metric, together

pytestmark = pytest.mark.anyio

SERVER = "typescript-v1"
SILENT = "typescript-v1-json"


def progress_of(messages):
    return [message["params"]["progress"] for message in messages if "method" in message]


def text_of(message):
    return message["result"]["content"][0]["text"]


@pytest.fixture
def proxy(start, servers):
    """Starts a proxy for one test, so that its metrics are of this test alone: `proxy(server)`."""
    return lambda server: start(stack.start_proxy, servers[server]).found


async def reset_seen(proxy):
    """Waits until the proxy has noticed the client's disconnect: before that, the same request again is no retry of a lost one."""
    await eventually(lambda: metric(proxy["admin"], "streams_attached") == 0)


async def test_a_post_repeated_after_a_reset_runs_the_tool_once(servers, proxy, key):
    """Same session, id and body again: the repeat takes over the first call's stream, from its first event."""
    proxy = proxy(SERVER)
    session = await open_session(proxy["port"])
    body = call(7, "long", steps=4, interval_ms=200, key=key)
    first = await ask(proxy["port"], body=body, **session)
    await until_progress(first, 2)
    first.reset()
    await reset_seen(proxy)
    again = await ask(proxy["port"], body=body, **session)
    assert again.status == 200
    messages = await again.messages()
    assert progress_of(messages) == [1, 2, 3, 4]
    assert (messages[-1]["id"], text_of(messages[-1])) == (7, "done 4")
    assert metric(proxy["admin"], "retries_total") == 1
    assert_runs(servers[SERVER], key)


async def test_a_post_repeated_before_any_byte_of_the_answer_runs_the_tool_once(servers, proxy, key):
    proxy = proxy(SILENT)
    session = await open_session(proxy["port"])
    body = call("seven", "long", steps=1, interval_ms=1200, key=key)
    first = await send(proxy["port"], body=body, **session)
    await eventually(lambda: counters(servers[SILENT], key)["started"] == 1)
    busy = metric(proxy["admin"], "connections")
    first.reset()
    await eventually(lambda: metric(proxy["admin"], "connections") < busy)
    messages = await (await ask(proxy["port"], body=body, **session)).messages()
    assert (messages[-1]["id"], text_of(messages[-1])) == ("seven", "done 1")
    assert_runs(servers[SILENT], key)


@pytest.mark.parametrize("what", ["id", "type of the id", "body"])
async def test_what_is_not_the_same_is_a_new_call(what, servers, proxies, key):
    port = proxies[SERVER]
    session = await open_session(port)
    first = await ask(port, body=call(7, "long", steps=3, interval_ms=150, key=key), **session)
    await until_progress(first, 1)
    first.reset()
    other = {
        "id": call(8, "long", steps=3, interval_ms=150, key=key),
        "type of the id": call("7", "long", steps=3, interval_ms=150, key=key),
        "body": call(9, "long", steps=2, interval_ms=150, key=key),
    }[what]
    messages = await (await ask(port, body=other, **session)).messages()
    assert messages[-1]["id"] == other["id"]
    await eventually(lambda: counters(servers[SERVER], key)["finished"] == 2)
    assert_runs(servers[SERVER], key, started=2, finished=2)


async def test_another_session_is_a_new_call(servers, proxies, key):
    port = proxies[SERVER]
    body = call(7, "long", steps=3, interval_ms=150, key=key)
    first = await ask(port, body=body, **await open_session(port))
    await until_progress(first, 1)
    first.reset()
    messages = await (await ask(port, body=body, **await open_session(port))).messages()
    assert progress_of(messages) == [1, 2, 3]
    await eventually(lambda: counters(servers[SERVER], key)["finished"] == 2)


async def test_a_resume_reads_on_after_its_cursor(servers, proxies, key):
    """The response begins with an empty event under a fresh id, and has the events after the cursor, once."""
    port = proxies[SERVER]
    session = await open_session(port)
    first = await ask(port, body=call(1, "long", steps=4, interval_ms=150, key=key), **session)
    prime = await first.event()
    assert (prime.data, prime.id.rsplit(".", 1)[1]) == ("", "0")
    await until_progress(first, 1)
    seen = await first.event()
    first.reset()
    resumed = await ask(port, method="GET", last_event_id=seen.id, **session)
    assert resumed.status == 200
    fresh = await resumed.event()
    assert fresh.data == ""
    assert fresh.id.startswith(f"{seen.id}.")
    messages = await resumed.messages()
    assert progress_of(messages) == [3, 4]
    assert text_of(messages[-1]) == "done 4"
    assert_runs(servers[SERVER], key)


async def test_a_finished_stream_has_no_more(servers, proxies, key):
    port = proxies[SERVER]
    session = await open_session(port)
    answer = await ask(port, body=call(1, "long", steps=1, interval_ms=50, key=key), **session)
    last = None
    while event := await answer.event():
        last = event
    resumed = await ask(port, method="GET", last_event_id=last.id, **session)
    assert resumed.status == 204


async def test_a_cancel_reaches_the_server(servers, proxies, key):
    port = proxies[SERVER]
    session = await open_session(port)
    answer = await ask(port, body=call(3, "long", steps=100, interval_ms=50, key=key), **session)
    await until_progress(answer, 1)
    cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 3}}
    assert (await ask(port, body=cancel, **session)).status == 202
    await eventually(lambda: counters(servers[SERVER], key)["cancelled"] == 1)
    answer.reset()


async def test_the_end_of_a_session_is_the_end_of_its_calls(proxies, key):
    port = proxies[SERVER]
    session = await open_session(port)
    answer = await ask(port, body=call(1, "long", steps=100, interval_ms=50, key=key), **session)
    prime = await answer.event()
    await until_progress(answer, 1)
    ended = await ask(port, method="DELETE", **session)
    assert ended.status == 200
    await ended.body()
    last = (await answer.messages())[-1]
    assert (last["id"], last["error"]["code"]) in [(1, -32010), (1, -32011)]
    assert (await ask(port, body=call(2, "quick", key=key), **session)).status == 404
    gone = await ask(port, method="GET", last_event_id=prime.id, **session)
    assert (await gone.messages())[-1] == last


@pytest.fixture
def guarded(start):
    """A server that refuses wrong tokens late, later than the proxy would commit; the port of a proxy in front of it."""
    server = start(stack.start_server, SERVER, AUTH="right", AUTH_DELAY_MS="1200")
    return start(stack.start_proxy, server.found["port"]).found["port"]


async def test_a_late_401_is_still_a_401(guarded, key):
    """A committed response cannot refuse; so the proxy commits nothing for credentials that were never accepted."""
    session = await open_session(guarded, authorization="Bearer right")
    quick = await ask(guarded, body=call(1, "quick", key=key), **session)
    assert quick.status == 200
    for wrong in ({"authorization": "Bearer wrong"}, {}):
        headers = {name: value for name, value in session.items() if name != "authorization"} | wrong
        refused = await ask(guarded, body=call(2, "long", steps=1, interval_ms=50, key=key), **headers)
        assert refused.status == 401
        assert refused.headers["www-authenticate"] == 'Bearer error="invalid_token"'


async def test_many_clients_at_once_do_not_mix(servers, proxies, key):
    """Twenty sessions, one id: each gets its own response."""
    port = proxies[SERVER]

    async def one(n):
        session = await open_session(port)
        body = call(1, "long", steps=n % 5 + 1, interval_ms=20, key=f"{key}{n}")
        messages = await (await ask(port, body=body, **session)).messages()
        return len(progress_of(messages)), text_of(messages[-1])

    answers = await together(*(one(n) for n in range(20)))
    assert answers == [(n % 5 + 1, f"done {n % 5 + 1}") for n in range(20)]
