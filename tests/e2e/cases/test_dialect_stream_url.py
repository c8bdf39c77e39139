"""Stream URLs (SEP-1335): the `Link`, resuming by it, and requests of the server in turns."""

import asyncio
import json

import pytest

from harness import stack
from harness.checks import assert_runs
from harness.dialects import Refused, StreamUrl
from harness.dialects.wire import reply
from harness.raw import ask, call
from harness.relay import Cut, Relay
from harness.stack import CLIENTS, LEGACY, SERVERS, run_client

pytestmark = pytest.mark.anyio

SERVERS_ASKING = ["typescript-v1", "python-mcp1"]
ANSWERED = "answered sampled elicited"

on_every_server = pytest.mark.parametrize("server", SERVERS_ASKING)

TURN_CUTS = {
    "uncut": None,
    "before-event": Cut("event", 0),
    "before-the-question": Cut("event", 1),
    "after-the-question": Cut("event", 2),
    "in-the-response": Cut("final", resumes=True),
    "away": Cut("event", 2, away=1.5),
    "repeatedly": Cut("event", 1, times=3, resumes=True),
}


@pytest.fixture
def turning(servers, start):
    """Starts a proxy with the given mode of turns, between two relays: `async with turning(server, mode, cut) as …`."""

    class Turning:
        def __init__(self, server, mode, cut=None, grace_ms=300, **settings):
            self.port, self.cut, self.slow = servers[server], cut, settings.pop("slow", 0.0)
            self.settings = {
                "DIALECTS__STREAM_URL_TURNS": mode,
                "DIALECTS__INPUT_GRACE_MS": grace_ms,
                "DELIVERY__RETRY_MS": 300,
            } | settings

        async def __aenter__(self):
            self.upstream = await Relay(self.port).__aenter__()
            proxy = await asyncio.to_thread(start, stack.start_proxy, self.upstream.port, **self.settings)
            self.relay = await Relay(proxy.found["port"], self.cut, self.slow).__aenter__()
            return self.relay, self.upstream

        async def __aexit__(self, *reason):
            await self.relay.__aexit__(*reason)
            await self.upstream.__aexit__(*reason)

    return Turning


@pytest.mark.each_value
@pytest.mark.parametrize("cut", TURN_CUTS)
@on_every_server
async def test_two_turns(server, cut, turning, servers, key):
    """A strict client, which answers only in turns. Each request closes a turn; the answers open the next."""
    cut = TURN_CUTS[cut]
    async with turning(server, "all", cut) as (relay, upstream):
        client = await StreamUrl.connect(relay.port)
        await client.call(call(7, "survey", key=key))
        assert (client.text, client.progress) == (ANSWERED, [1])
        assert client.turns == [1, 1]
        assert len(upstream.answers) == 2
        assert relay.cuts == (cut.times if cut else 0), relay.report()
        if cut is None:
            turn = [("GET", 204), ("POST", 200)]
            assert client.statuses == [("POST", 200), *turn, *turn]
        assert_runs(servers[server], key)


@on_every_server
async def test_two_questions_in_one_turn(server, turning, servers, key):
    async with turning(server, "all") as (relay, upstream):
        client = await StreamUrl.connect(relay.port)
        await client.call(call(7, "survey", at_once=True, key=key))
        assert (client.text, client.turns) == (ANSWERED, [2])
        assert len(upstream.answers) == 2
        assert_runs(servers[server], key)


async def until_turn(client, body):
    """Reads until the server waits: its requests have arrived, and the URL answers 204."""
    await client.begin(body)
    await client.rest()
    assert client.answer is None
    await client.pause()
    await client.get()
    assert client.response.status == 204


@on_every_server
async def test_what_was_not_answered_opens_a_further_turn(server, turning, servers, key):
    """An unanswered request is not sent again."""
    async with turning(server, "all") as (relay, upstream):
        client = await StreamUrl.connect(relay.port)
        await until_turn(client, call(7, "survey", at_once=True, key=key))
        first, second = client.buffer
        await client.turn([first])
        assert await client.rest() == []
        await client.pause()
        await client.get()
        assert client.response.status == 204
        await client.turn([second])
        await client.rest()
        assert client.text == ANSWERED
        assert client.methods.count("sampling/createMessage") == client.methods.count("elicitation/create") == 1
        assert len(upstream.answers) == 2
        assert_runs(servers[server], key)


@on_every_server
async def test_the_same_answers_again_deliver_nothing_twice(server, turning, servers, key):
    """The response to a turn was lost, so its client repeats the answers, and gets the stream."""
    async with turning(server, "all") as (relay, upstream):
        client = await StreamUrl.connect(relay.port)
        await until_turn(client, call(7, "ask", kind="sampling", key=key))
        await client.turn(client.buffer)
        client.drop()
        await client.turn(client.buffer)
        await client.rest()
        assert client.text == "answered sampled"
        assert len(upstream.answers) == 1
        assert_runs(servers[server], key)


async def test_one_answer_needs_no_array(turning, key):
    async with turning("typescript-v1", "all") as (relay, _):
        client = await StreamUrl.connect(relay.port)
        await until_turn(client, call(7, "ask", kind="elicitation", key=key))
        await client.open(body=client.buffer[0], path=client.url)
        await client.rest()
        assert client.text == "answered elicited"


@pytest.mark.parametrize(
    "body",
    [[], {"jsonrpc": "2.0", "id": 1, "method": "ping"}, [{"jsonrpc": "2.0", "method": "notifications/progress"}], 3],
    ids=["nothing", "request", "notification", "number"],
)
async def test_only_answers_are_a_turn(body, turning, servers, key):
    async with turning("typescript-v1", "all") as (relay, upstream):
        client = await StreamUrl.connect(relay.port)
        await until_turn(client, call(7, "ask", kind="sampling", key=key))
        with pytest.raises(Refused) as refused:
            await client.open(body=body, path=client.url)
        assert refused.value.status == 400
        assert upstream.answers == []
        await client.turn()
        await client.rest()
        assert client.text == "answered sampled"
        assert_runs(servers["typescript-v1"], key)


@on_every_server
async def test_seen_turns_for_a_client_that_used_its_url(server, turning, servers, key):
    """The default: a cut brought the client to its URL, so this call and the later ones of its session go in turns."""
    async with turning(server, "seen", Cut("event", 1)) as (relay, upstream):
        client = await StreamUrl.connect(relay.port)
        for n in (1, 2):
            await client.call(call(n, "survey", key=f"{key}{n}"))
            assert client.text == ANSWERED
            assert_runs(servers[server], f"{key}{n}")
        assert client.turns == [1, 1, 1, 1]
        assert relay.cuts == 1
        assert len(upstream.answers) == 4


@pytest.mark.each_value
@pytest.mark.parametrize("mode", ["seen", "off"])
@on_every_server
async def test_other_clients_are_not_closed_on(server, mode, turning, servers, key):
    """A client that never used a stream URL may take its time to answer at the endpoint."""
    async with turning(server, mode, slow=1.2) as (relay, _):
        client = await StreamUrl.connect(relay.port)
        client.lenient = True
        await client.call(call(7, "survey", key=key))
        assert (client.text, client.statuses) == (ANSWERED, [("POST", 200)])
        assert_runs(servers[server], key)


@on_every_server
async def test_off_holds_the_url_while_a_question_is_open(server, turning, servers, key):
    async with turning(server, "off") as (relay, _):
        client = await StreamUrl.connect(relay.port)
        await client.begin(call(7, "ask", kind="sampling", key=key))
        question = await client.until_asked()
        client.drop()
        await client.get()
        assert client.response.status == 200
        assert await client.post(reply(question)) == 202
        await client.rest()
        assert (client.text, client.methods.count("sampling/createMessage")) == ("answered sampled", 1)
        assert_runs(servers[server], key)


STOCK_CUTS = {"uncut": None, "after-the-question": Cut("event", 2)}


@pytest.mark.parametrize("cut", STOCK_CUTS)
@pytest.mark.parametrize("kind, word", [("sampling", "sampled"), ("elicitation", "elicited")])
@pytest.mark.parametrize("mode", ["seen", "all", "off"])
@pytest.mark.parametrize("client", CLIENTS)
async def test_stock_clients_lose_nothing(client, mode, kind, word, cut, turning, servers, key):
    """In mode "all" such clients are closed on too, and resume by Last-Event-ID on a connection that is held: a delay, but no loss."""
    server = "typescript-v1"
    async with turning(server, mode, STOCK_CUTS[cut], slow=1.2) as (relay, upstream):
        said = await run_client(client, LEGACY, relay.url(), "ask", {"kind": kind, "key": key})
        assert said.result == f"answered {word}", (said.error, said.noise, relay.report())
        assert (said.progress, said.asked) == ([1], [kind])
        assert len(upstream.answers) == 1
        assert bool(relay.resumes) == (mode == "all" or cut != "uncut"), relay.report()
        assert_runs(servers[server], key)


async def cut_off(port, key, steps=4, **headers):
    client = await StreamUrl.connect(port, **headers)
    await client.begin(call(7, "long", steps=steps, interval_ms=200, key=key))
    await client.until_progress(1)
    client.drop()
    return client


@on_every_server
async def test_without_a_cursor_from_the_start(server, servers, proxies, key):
    """A client without a cursor gets all events."""
    client = await cut_off(proxies[server], key)
    await client.get(confirm=False)
    await client.rest()
    assert (client.progress, client.text) == ([1, 1, 2, 3, 4], "done 4")
    assert_runs(servers[server], key)


@on_every_server
async def test_after_the_answer_there_is_no_more(server, proxies, key):
    client = await StreamUrl.connect(proxies[server])
    await client.call(call(7, "long", steps=1, interval_ms=50, key=key))
    await client.get()
    assert client.response.status == 204


@on_every_server
async def test_the_answer_came_while_the_client_was_away(server, servers, proxies, key):
    client = await cut_off(proxies[server], key)
    await stack.eventually(lambda: stack.counters(servers[server], key)["finished"] == 1)
    await client.get()
    await client.rest()
    assert (client.progress, client.text) == ([1, 2, 3, 4], "done 4")


@on_every_server
async def test_two_readers_of_one_url(server, servers, proxies, key):
    older = await cut_off(proxies[server], key, steps=8)
    newer = older.twin()
    await older.get()
    await older.until_progress(2)
    newer.cursor = older.cursor
    await newer.get()
    await newer.rest()
    await older.rest()
    assert (older.answer, newer.text, newer.progress) == (None, "done 8", list(range(3, 9)))
    assert_runs(servers[server], key)


async def test_an_unknown_url(proxies, key):
    """The response is that to a lost event ID: one event, an error for the request, if the URL still reveals its id."""
    client = await cut_off(proxies["typescript-v1"], key)
    path, _, handle = client.url.partition("mcp-stream=")
    # A malformed handle makes no stream URL.
    assert (await ask(client.port, method="GET", path=f"{path}mcp-stream=AAAA", **client.session)).status == 400
    for wrong in (handle[:-1] + ("A" if handle[-1] != "A" else "B"), handle[:-2]):
        answer = await ask(client.port, method="GET", path=f"{path}mcp-stream={wrong}", **client.session)
        assert answer.status == 200, wrong
        (message,) = await answer.messages()
        assert message["error"]["code"] == -32012
    # A URL is no token: it is valid only for its principal in its session.
    foreign = client.session | {"authorization": "Bearer another's"}
    other = (await StreamUrl.connect(client.port)).session
    for session in (foreign, other):
        answer = await ask(client.port, method="GET", path=client.url, **session)
        (message,) = await answer.messages()
        assert (message["id"], message["error"]["code"]) == (7, -32012)


@on_every_server
async def test_max_wait_is_the_end_of_the_call(server, servers, start, key):
    proxy = start(stack.start_proxy, servers[server], STREAMS__MAX_WAIT_SECS=1)
    client = await cut_off(proxy.found["port"], key, steps=300)
    await stack.eventually(lambda: stack.counters(servers[server], key)["cancelled"] == 1)
    await client.get()
    await client.rest()
    assert client.answer["error"]["code"] == -32011


async def test_a_cursor_of_another_stream(proxies, key):
    port = proxies["typescript-v1"]
    client, other = await cut_off(port, key), await cut_off(port, key)
    client.cursor = other.cursor
    with pytest.raises(Refused) as refused:
        await client.get()
    assert refused.value.status == 400


async def test_the_url_keeps_the_query_and_sends_no_referrer(proxies, key):
    client = await StreamUrl.connect(proxies["typescript-v1"])
    body = call(7, "quick", key=key)
    answer = await ask(client.port, body=body, path="/mcp?tenant=a%20b", **client.session)
    link = answer.headers["link"]
    await answer.messages()
    assert 'rel="stream"' in link
    assert link.startswith("<?tenant=a%20b&mcp-stream=")
    assert answer.headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize("server", [name for name in SERVERS if name != "typescript-v1-json"])
async def test_every_stream_has_its_url(server, proxies):
    """Every response that is a stream has a URL of its own; `initialize` and JSON need none."""
    client = await StreamUrl.connect(proxies[server])
    found = set()
    for n in (1, 2):
        await client.call({"jsonrpc": "2.0", "id": n, "method": "tools/list", "params": {}})
        assert client.url not in found, json.dumps(client.answer)
        found.add(client.url)
    assert None not in found


async def test_switched_off(servers, start, key):
    proxy = start(stack.start_proxy, servers["typescript-v1"], DIALECTS__STREAM_URL="false")
    client = await StreamUrl.connect(proxy.found["port"])
    await client.call(call(7, "quick", key=key))
    assert client.url is None
