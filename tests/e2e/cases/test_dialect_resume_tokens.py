"""Resume tokens (#1003): slices of time, by raw calls and by stock SDK clients that repeat the tool call with the token."""

import asyncio

import pytest

from harness import stack
from harness.checks import assert_runs
from harness.dialects import ResumeTokens
from harness.raw import ask, call, open_session
from harness.relay import Cut, Relay
from harness.stack import CLIENTS, LEGACY, counters, eventually, run_client

pytestmark = pytest.mark.anyio

SLICED = [("typescript-v1", "long"), ("python-mcp1", "plain")]

on_every_server = pytest.mark.parametrize("server, tool", SLICED)

# The others drop unknown members of a result, so they cannot see the token.
SEEING = ["typescript-v1", "typescript-v2", "python-mcp1"]

STOCK_CUTS = {
    "uncut": None,
    "in-a-slice": Cut("event", 1),
    "in-two-slices": Cut("event", 1, times=2),
    "in-the-response": Cut("final"),
}


@pytest.fixture
def slicing(servers, start):
    """Starts a proxy that slices calls, in front of a server; its port."""
    return lambda server, **settings: start(stack.start_proxy, servers[server], **stack.SLICES, **settings).found["port"]


@pytest.mark.each_value
@pytest.mark.parametrize("cut", STOCK_CUTS)
@pytest.mark.parametrize("server, tool", [*SLICED, ("fastmcp", "plain")])
@pytest.mark.parametrize("client", SEEING)
async def test_stock_clients(client, server, tool, cut, slicing, servers, key):
    """A loop that returns the token among the tool's arguments is enough; a cut may make a slice longer."""
    cut = STOCK_CUTS[cut]
    async with Relay(await asyncio.to_thread(slicing, server), cut) as relay:
        arguments = {"steps": 10, "interval_ms": 500, "key": key}
        said = await run_client(client, LEGACY, relay.url(), tool, arguments, resume_tokens=True)
        report = (said.error, said.noise, relay.report())
        assert (said.progress, said.result) == (list(range(1, 11)), "done 10"), report
        assert said.slices >= 1
        assert len(relay.calls) == said.slices + 1
        assert relay.cuts == (cut.times if cut else 0), relay.report()
        assert_runs(servers[server], key)


@pytest.mark.parametrize("client", CLIENTS)
async def test_clients_that_know_nothing_of_it(client, slicing, servers, key):
    """The reason that this is off by default: such clients take the first slice for the result."""
    port = await asyncio.to_thread(slicing, "typescript-v1")
    async with Relay(port) as relay:
        arguments = {"steps": 3, "interval_ms": 600, "key": key}
        said = await run_client(client, LEGACY, relay.url(), "long", arguments)
        assert said.result != "done 3"
        assert len(relay.calls) == 1


async def first_slice(port, tool, key, steps=5, interval_ms=600, **headers):
    """A client that has its first interim result, and the token."""
    client = await ResumeTokens.connect(port, **headers)
    body = call(7, tool, steps=steps, interval_ms=interval_ms, key=key)
    await client.one(body)
    client._base = body
    return client, client.next_token()


async def assert_refused(client, body):
    await client.one(body)
    assert (client.answer["id"], client.answer["error"]["code"]) == (body["id"], -32602)
    return client.answer["error"]


@on_every_server
async def test_what_does_not_fit_is_refused_alike(server, tool, slicing, servers, key):
    port = slicing(server)
    mine = {"authorization": "Bearer mine"}
    client, token = await first_slice(port, tool, key, **mine)
    _, others = await first_slice(port, tool, f"{key}-other", **mine)
    changed = call(7, tool, steps=6, interval_ms=600, key=key)
    stranger = ResumeTokens(port, await open_session(port, authorization="Bearer another's"))
    said = [
        await assert_refused(client, client.again("changed", token, changed)),
        await assert_refused(client, client.again("another's", others)),
        await assert_refused(client, client.again("made-up", "made-up")),
        await assert_refused(client, client.again("a bit off", token[:-1] + ("A" if token[-1] != "A" else "B"))),
        await assert_refused(stranger, client.again("a stranger", token)),
    ]
    assert all(error == said[0] for error in said), said
    # None of these ran, and the call still goes on.
    await client.one(client.again("right", token))
    assert "result" in client.answer
    assert_runs(servers[server], key, finished=counters(servers[server], key)["finished"])


@on_every_server
async def test_after_the_result_the_token_opens_nothing(server, tool, slicing, servers, key):
    port = slicing(server)
    client = await ResumeTokens.connect(port)
    await client.call(call(7, tool, steps=3, interval_ms=600, key=key))
    token = client.slices[0]["nextResumeToken"]

    # Until its delivery is known, the token gives the result again; a connection that stays open for two seconds after it proves
    # that.
    await client.one(client.again("late", token))
    assert client.text == "done 3"
    held = await ask(port, body=client.again("held", token), **client.session)
    while (event := await held.event()) and '"result"' not in event.data:
        pass
    assert await held.event() is None
    await asyncio.sleep(2.5)
    held.close()
    await client.one(client.again("later", token))
    assert client.answer["error"]["code"] == -32602
    assert_runs(servers[server], key)


@on_every_server
async def test_max_wait_is_the_end_of_the_call(server, tool, slicing, servers, key):
    port = slicing(server, STREAMS__MAX_WAIT_SECS=1)
    client, token = await first_slice(port, tool, key, steps=100)
    assert [value for name, value in client.answer["result"]["_meta"].items() if name.endswith("/ttl")] == [1]
    await eventually(lambda: counters(servers[server], key)["cancelled"] == 1)
    await assert_refused(client, client.again("late", token))


@on_every_server
async def test_the_same_token_again_is_a_retry(server, tool, slicing, servers, key):
    """The response to a slice was lost; its client repeats the request, under any id."""
    port = slicing(server)
    client, token = await first_slice(port, tool, key)
    lost = client.twin()
    await lost.begin(client.again("lost", token))
    lost.drop()
    await client.one(client.again("again", token))
    assert client.answer["id"] == "again"
    while (token := client.next_token()) is not None:
        await client.one(client.again(f"slice-{len(client.slices)}", token))
    assert client.text == "done 5"
    # Each event was sent; those of the lost response were never confirmed.
    assert client.progress == list(range(1, 6))
    assert_runs(servers[server], key)


@on_every_server
async def test_from_a_new_session(server, tool, slicing, servers, key):
    port = slicing(server)
    client, token = await first_slice(port, tool, key)
    client.session = await open_session(port)
    while token is not None:
        await client.one(client.again(f"slice-{len(client.slices)}", token))
        token = client.next_token()
    assert (client.text, client.progress) == ("done 5", [1, 2, 3, 4, 5])
    assert_runs(servers[server], key)


@on_every_server
async def test_progress_goes_by_the_token_of_its_slice(server, tool, slicing, servers, key):
    port = slicing(server)
    client, token = await first_slice(port, tool, key)
    while token is not None:
        body = client.again(f"slice-{len(client.slices)}", token)
        body["params"]["_meta"]["progressToken"] = body["id"]
        before = len(client.got)
        await client.one(body)
        told = [got.message for got in client.got[before:] if got.method == "notifications/progress"]
        assert {message["params"]["progressToken"] for message in told} <= {body["id"]}
        token = client.next_token()
    assert (client.text, client.progress) == ("done 5", [1, 2, 3, 4, 5])


@on_every_server
async def test_a_question_in_a_later_slice(server, tool, servers, start, key):
    """A request of the server is sent on the open slice; it is answered at the endpoint, as ordinary clients do it."""
    settings = stack.SLICES | {"DIALECTS__RESUME_TOKENS__TOOLS": "ask"}
    if server != "typescript-v1":
        # The tool has an output schema there: one call, no slices.
        settings = stack.SLICES
    proxy = start(stack.start_proxy, servers[server], **settings)
    client = await ResumeTokens.connect(proxy.found["port"])
    await client.call(call(7, "ask", kind="sampling", delay_ms=1500, key=key))
    assert client.text == "answered sampled"
    assert bool(client.slices) == (server == "typescript-v1")
    assert_runs(servers[server], key)


async def test_a_tool_with_an_output_schema_is_never_sliced(slicing, servers, key):
    """Clients would reject an interim result of such a tool. With or without an earlier tools/list."""
    port = slicing("python-mcp1")
    client = await ResumeTokens.connect(port)
    await client.call(call(7, "long", steps=3, interval_ms=600, key=key))
    assert (client.slices, client.text) == ([], "done 3")
    assert_runs(servers["python-mcp1"], key)


@on_every_server
async def test_the_list_of_tools_says_it(server, tool, slicing, proxies):
    """Only the configured tool gains an optional string."""
    port = slicing(server)
    client = await ResumeTokens.connect(port)
    listing = {"jsonrpc": "2.0", "id": 7, "method": "tools/list", "params": {}}
    await client.call(listing)
    sliced = {entry["name"]: entry for entry in client.answer["result"]["tools"]}
    plain = ResumeTokens(proxies[server], await open_session(proxies[server]))
    await plain.call(listing)
    for entry in plain.answer["result"]["tools"]:
        if entry["name"] == tool:
            added = sliced[tool]["inputSchema"]["properties"].pop("resumeToken")
            assert added["type"] == "string"
        assert sliced[entry["name"]] == entry


@pytest.mark.parametrize("where", ["params", "arguments"])
async def test_the_server_never_sees_a_token(where, servers, start, key):
    """For other tools a token is ordinary payload."""
    async with Relay(servers["typescript-v1"]) as upstream:
        proxy = await asyncio.to_thread(start, stack.start_proxy, upstream.port, **stack.SLICES)
        client = await ResumeTokens.connect(proxy.found["port"])
        client.where = where
        await client.call(call(7, "long", steps=3, interval_ms=600, key=key))
        assert client.text == "done 3"
        assert client.slices
        assert len(upstream.calls) == 1
        assert b"esumeToken" not in upstream.calls[0].body
        other = client.again("other", "of the tool's own", call(8, "quick", key=key))
        await client.one(other)
        assert client.text == "quick"
        assert upstream.calls[1].messages == [other]


async def test_off_unless_configured(servers, proxies, key):
    client = await ResumeTokens.connect(proxies["typescript-v1"])
    body = client.again(7, "of the tool's own", call(7, "long", steps=3, interval_ms=600, key=key))
    await client.one(body)
    assert client.text == "done 3"
    listing = await (
        await ask(client.port, body={"jsonrpc": "2.0", "id": 8, "method": "tools/list"}, **client.session)
    ).messages()
    assert "resumeToken" not in str(listing)


async def test_a_call_that_ends_in_its_first_slice(slicing, servers, key):
    port = slicing("typescript-v1")
    client = await ResumeTokens.connect(port)
    await client.call(call(7, "long", steps=2, interval_ms=50, key=key))
    assert (client.text, client.slices, client.progress) == ("done 2", [], [1, 2])
    await client.call(call(8, "no-such-tool"))
    assert client.answer["result"]["isError"] is True
    assert "nextResumeToken" not in client.answer["result"]
