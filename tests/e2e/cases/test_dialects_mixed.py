"""All dialects on one stream: a client may change between them at every cut, since they share one cursor."""

import pytest

from harness.checks import assert_got, assert_runs
from harness.dialects import ResumableRequests, ResumableStreams, StreamUrl
from harness.dialects.resumable_requests import POLICY
from harness.dialects.resumable_streams import CREATE, END
from harness.raw import ask, call

pytestmark = pytest.mark.anyio

SERVERS = ["typescript-v1", "python-mcp1", "typescript-v1-stateless"]

WAYS = ["sse", "requests", "url", "streams"]

on_every_server = pytest.mark.parametrize("server", SERVERS)


class Mixed(StreamUrl):
    """A client of all dialects, which resumes by the one that the test chooses."""

    declares = ResumableRequests.declares | ResumableStreams.declares

    def __init__(self, port, session):
        super().__init__(port, session, lenient=True)
        self.parts = {"requests": ResumableRequests(port, session), "streams": ResumableStreams(port, session)}
        for part in self.parts.values():
            part.answers_at_once = False

    async def handle(self, message):
        await super().handle(message)
        for part in self.parts.values():
            part.body = self.body
            await part.handle(message)

    async def go_on(self, way, confirm=True):
        if way == "sse":
            assert confirm, "a plain GET is the standalone stream's"
            await self.open(method="GET", last_event_id=self.cursor)
        elif way == "url":
            await self.get(confirm)
        else:
            part = self.parts[way]
            part.cursor = self.cursor
            await part.resume(confirm)
            self.response = part.response


async def begin(port, key, steps=10):
    client = await Mixed.connect(port)
    await client.begin(call(7, "long", steps=steps, interval_ms=200, key=key))
    await client.until_progress(1)
    client.drop()
    return client


@pytest.mark.each_value
@pytest.mark.parametrize("first", range(len(WAYS)))
@on_every_server
async def test_another_way_after_each_cut(server, first, servers, proxies, key):
    client = await begin(proxies[server], key)
    for n in range(4):
        await client.go_on(WAYS[(first + n) % 4])
        if n < 3:
            await client.until_progress(2 * n + 3)
            client.drop()
    await client.rest()
    assert_got(client, 10, "done 10")
    # The policy before the create, each once; the end at the end, and the response to `stream/resume` if that came last.
    last = [None] if WAYS[(first + 3) % 4] == "streams" else []
    assert client.methods == [POLICY, CREATE, *["notifications/progress"] * 10, None, END, *last]
    assert_runs(servers[server], key)


@pytest.mark.each_value
@pytest.mark.parametrize("way", ["requests", "streams"])
@on_every_server
async def test_a_get_confirms_for_all_and_deletes_nothing(server, way, servers, proxies, key):
    """An older cursor still finds events that a GET confirmed; a resume without a cursor does not get them again."""
    client = await begin(proxies[server], key, steps=6)
    early = client.cursor
    for get in ("sse", "url"):
        client.cursor = early
        await client.go_on(get)
        assert (await client.next())["params"]["progress"] == 2
        await client.until_progress(3)
        client.drop()
        await client.go_on(get)
        client.drop()
    before = len(client.got)
    await client.go_on(way, confirm=False)
    await client.rest()
    assert client.got[before].message["params"]["progress"] == 4
    assert client.text == "done 6"
    assert_runs(servers[server], key)


@pytest.mark.each_value
@pytest.mark.parametrize("way", ["requests", "streams"])
@on_every_server
async def test_a_post_deletes_what_it_confirms(server, way, servers, proxies, key):
    """An older cursor is lost then, and its client gets the error under the call's id."""
    client = await begin(proxies[server], key, steps=6)
    early = client.cursor
    await client.go_on("sse")
    await client.until_progress(3)
    client.drop()
    await client.go_on(way)
    await client.rest()
    assert (client.progress, client.text) == ([1, 2, 3, 4, 5, 6], "done 6")
    answer = await ask(client.port, method="GET", **client.session | {"last_event_id": early})
    assert answer.status == 200
    (lost,) = await answer.messages()
    assert (lost["id"], lost["error"]["code"]) == (7, -32012)
    assert_runs(servers[server], key)
