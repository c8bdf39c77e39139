"""Resumable requests (SEP-975): the policy, `requests/getStatus`, and requests of the server across a resume."""

import pytest

from harness.checks import assert_runs
from harness.dialects import ResumableRequests
from harness.dialects.resumable_requests import POLICY
from harness.dialects.steps import until
from harness.dialects.wire import reply
from harness.raw import call
from harness.relay import Cut, Relay

pytestmark = pytest.mark.anyio

SERVERS = ["typescript-v1", "python-mcp1"]

on_every_server = pytest.mark.parametrize("server", SERVERS)


@on_every_server
async def test_status_while_it_runs(server, servers, proxies, key):
    """Unconfirmed messages are pending; asking for the status confirms nothing."""
    client = await ResumableRequests.connect(proxies[server])
    await client.begin(call(7, "ask", kind="sampling", delay_ms=2500, key=key))
    await client.until_progress(1)
    client.drop()
    assert await client.status() == ("processing", True, False)
    # After the notification was confirmed nothing is pending.
    assert await client.status(confirm=True) == ("processing", False, False)
    assert await client.status() == ("processing", True, False)
    await client.resume(confirm=False)
    await client.rest()
    assert (client.progress, client.text) == ([1, 1], "answered sampled")
    assert client.methods.count(POLICY) == 2
    assert_runs(servers[server], key)


@on_every_server
async def test_status_after_the_end(server, servers, proxies, key):
    """The response came while its client was away: completed, and pending until confirmed."""
    client = await ResumableRequests.connect(proxies[server])
    await client.begin(call(7, "long", steps=2, interval_ms=200, key=key))
    await client.until_progress(1)
    client.drop()
    await until(client.finished)
    assert await client.status() == ("completed", True, False)
    await client.resume()
    await client.rest()
    assert (client.progress, client.text) == ([1, 2], "done 2")
    assert await client.status(confirm=True) == ("completed", False, False)
    assert_runs(servers[server], key)


@on_every_server
async def test_status_of_a_call_that_failed(server, proxies):
    """A JSON-RPC error is a failure; a result with `isError` has completed."""
    client = await ResumableRequests.connect(proxies[server])
    await client.call({"jsonrpc": "2.0", "id": "seven", "method": "no/such", "params": {}})
    assert "error" in client.answer
    assert (await client.status())[0] == "failed"
    await client.call(call(8, "no-such-tool"))
    assert client.answer["result"]["isError"] is True
    assert (await client.status())[0] == "completed"


@on_every_server
async def test_a_question_that_was_not_answered(server, servers, proxies, key):
    """An open request of the server shows in the status, delivered or not; once answered it is not sent again."""
    client = await ResumableRequests.connect(proxies[server])
    client.answers_at_once = False
    await client.begin(call(7, "ask", kind="sampling", key=key))
    question = await client.until_asked()
    client.drop()
    assert await client.status() == ("processing", True, True)
    assert await client.status(confirm=True) == ("processing", False, True)
    # Neither confirmed nor answered, so it is sent again.
    await client.resume(confirm=False)
    assert await client.until_asked() == question
    client.drop()
    assert await client.post(reply(question)) == 202
    await until(client.finished)
    assert await client.status() == ("completed", True, False)
    asked = len([got for got in client.got if got.method == "sampling/createMessage"])
    await client.resume(confirm=False)
    await client.rest()
    assert client.text == "answered sampled"
    assert len([got for got in client.got if got.method == "sampling/createMessage"]) == asked == 2
    assert_runs(servers[server], key)


@pytest.mark.each_value
@pytest.mark.parametrize("kind, word", [("sampling", "sampled"), ("elicitation", "elicited")])
@on_every_server
async def test_a_question_asked_while_the_client_was_away(server, kind, word, servers, proxies, key):
    client = await ResumableRequests.connect(proxies[server])
    await client.begin(call(7, "ask", kind=kind, delay_ms=500, key=key))
    await client.until_progress(1)
    client.drop()

    async def asked():
        return (await client.status())[2]

    await until(asked)
    await client.resume()
    await client.rest()
    assert client.text == f"answered {word}"
    assert client.methods.count(None) == 1
    assert_runs(servers[server], key)


async def test_a_server_that_is_silent_until_the_end(servers, proxies, key):
    """A server that answers JSON and sends nothing before: the policy is sent all the same, in time for a resume."""
    server = "typescript-v1-json"
    async with Relay(proxies[server], Cut("event", 1)) as relay:
        client = await ResumableRequests.connect(relay.port)
        await client.call(call(7, "long", steps=1, interval_ms=1500, key=key))
        assert client.methods == [POLICY, None]
        assert client.text == "done 1"
        assert [exchange.method for exchange in relay.resumes] == ["POST"]
        assert_runs(servers[server], key)


async def test_an_answer_at_once_needs_no_policy(proxies, key):
    """A prompt response passes as the server's JSON, unchanged."""
    client = await ResumableRequests.connect(proxies["typescript-v1-json"])
    await client.call(call(7, "quick", key=key))
    assert (client.methods, client.text) == ([None], "quick")


@pytest.mark.parametrize("request_id", [7, "7", "seven", 0])
async def test_ids_keep_their_type(request_id, servers, proxies, key):
    client = await ResumableRequests.connect(proxies["typescript-v1"])
    await client.begin(call(request_id, "long", steps=3, interval_ms=150, key=key))
    await client.until_progress(1)
    client.drop()
    assert client.policy["requestId"] == request_id
    await client.resume()
    await client.rest()
    assert client.answer["id"] == request_id
    assert type(client.answer["id"]) is type(request_id)
    assert_runs(servers["typescript-v1"], key)
