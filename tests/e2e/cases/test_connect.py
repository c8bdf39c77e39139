"""Stock clients on stdio with `connect` as their server: client -> connect -> relay (cuts) -> serve -> a server that cannot resume.

Whatever the network does, a call has one outcome and the tool runs once. Without `serve`, what may not be repeated ends in words.
"""

import asyncio
import contextlib
import os
import signal
from pathlib import Path

import pytest

from harness import connect, restarts, stack, stdio
from harness.balancer import Island, Pipe
from harness.checks import assert_runs
from harness.connect import Host
from harness.relay import Cut, Relay
from harness.stack import (
    AUTO,
    CLIENTS,
    LEGACY,
    MODERN,
    PROTOCOL,
    SERVERS,
    Client,
    counters,
    eventually,
    run_client,
    together,
)

pytestmark = pytest.mark.anyio

# More steps than cuts.
STEPS, INTERVAL_MS = 12, 50
# The end of an error after which the host must not assume that the tool has not run.
WARNING = "the tool may have run: check whether it did before you call it again"
# Time for the end of the program after that of its host.
END_LIMIT = 4.0

# Servers that cannot resume. That of 2026-07-28 has no sessions.
SERVER = {LEGACY: "typescript-v1", MODERN: "typescript-v2"}
WHO = [pytest.param(name, era, id=f"{name}-{era}") for name, kind in CLIENTS.items() for era in kind.eras]

CUTS = {
    f"{name}-{how}": Cut(at, n, how)
    for how in ("rst", "fin")
    for name, at, n in (
        ("request", "request", 0),
        ("head", "head", 0),
        ("event-0", "event", 0),
        ("event-2", "event", 2),
        ("final", "final", 0),
    )
} | {
    "ten-times": Cut("event", 1, times=10, resumes=True),
    "away": Cut("event", 2, away=10),
}


@pytest.fixture
def before(tmp_path, key):
    """`before(url, era)`: the command line of `connect` before a URL. A promise at 2026-07-28 needs a credential."""

    def words(url, era=LEGACY, *options):
        token = ("--bearer", "env:TOKEN") if era == MODERN else ()
        return connect.words(url, tmp_path, *token, *options, TOKEN=key)

    return words


@pytest.fixture
def step(request):
    """The distance of cuts in a response: each byte with `--all`."""
    return 1 if request.config.option.all else 41


def report(relay, said):
    return "\n".join([relay.report(), str(said.outcomes), *said.noise])


def assert_told(relay, said, client, done):
    """The call completed, with each progress notification once and in order.

    The TypeScript SDKs lose those that they read together with the response, as behind a cut. It is the same with any server on stdio.
    """
    steps = list(range(1, STEPS + 1))
    assert (said.result, said.error) == (done, None), report(relay, said)
    read = len(said.progress) if client.startswith("typescript") else STEPS
    assert said.progress == steps[:read], report(relay, said)


@pytest.mark.each_value
@pytest.mark.parametrize("client, era", WHO)
@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
async def test_a_call_that_is_cut_completes(client, era, cut, servers, proxies, before, key):
    server = SERVER[era]
    tool, arguments, done = SERVERS[server].long(STEPS, INTERVAL_MS, key)
    async with Relay(proxies[server], cut) as relay:
        said = await run_client(client, era, connect.program(before(relay.url(), era)), tool, arguments)
        assert said.lines[0][1] == {"event": "connected", "protocol": PROTOCOL[era]}, said.noise
        assert_told(relay, said, client, done)
        assert relay.cuts == cut.times, relay.report()
        assert_runs(servers[server], key)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("era", SERVER)
async def test_a_call_survives_a_minute_without_a_network(era, servers, proxies, before, key):
    server = SERVER[era]
    async with Relay(proxies[server], Cut("event", 2, away=60)) as relay, Host(before(relay.url(), era), era) as host:
        answer = await host.call("long", progress=key, steps=STEPS, interval_ms=INTERVAL_MS, key=key)
        assert answer.get("result", {}).get("content") == [{"type": "text", "text": f"done {STEPS}"}], (answer, relay.report())
        assert host.progress_of(key) == list(range(1, STEPS + 1)), relay.report()
        assert relay.cuts == 1
        assert_runs(servers[server], key)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("era", SERVER)
async def test_a_response_that_is_cut_behind_any_byte_is_whole(era, step, servers, proxies, before, key):
    """In one session, until no cut falls into the response any more."""
    server = SERVER[era]
    async with Relay(proxies[server]) as relay, Host(before(relay.url(), era), era) as host:
        length, was_cut = 1, True
        while was_cut:
            name, relay.cuts = f"{key}-{length}", 0
            relay.cut = Cut("byte", length, how=("rst", "fin")[length % 2])
            answer = await host.call("long", progress=name, steps=2, interval_ms=1, key=name)
            where = f"behind byte {length}: {relay.report()}"
            assert answer.get("result", {}).get("content") == [{"type": "text", "text": "done 2"}], (answer, where)
            assert host.progress_of(name) == [1, 2], where
            assert_runs(servers[server], name)
            was_cut = relay.cuts > 0
            length += step
        assert length > 300, "the response is longer than its head"


OPENINGS = [(LEGACY, "initialize"), (LEGACY, "notifications/initialized"), (LEGACY, "standalone"), (LEGACY, "tools/list")]
OPENINGS += [(MODERN, "server/discover"), (MODERN, "tools/list")]


@pytest.mark.timeout(900)
@pytest.mark.every_case
@pytest.mark.parametrize("era, exchange", OPENINGS)
async def test_a_session_whose_opening_is_cut_behind_any_byte_is_opened(era, exchange, step, servers, proxies, before, key):
    """The first cut is before the response."""
    server = SERVER[era]
    async with Relay(proxies[server]) as relay:
        length, was_cut = 0, True
        while was_cut:
            name, relay.cuts = f"{key}-{length}", 0
            relay.cut = Cut("byte" if length else "request", length, how=("rst", "fin")[length % 2], on=exchange)
            async with Host(before(relay.url(), era), era) as host:
                where = f"behind byte {length}: {relay.report()}"
                listed = await host.ask("tools/list")
                assert "long" in [tool["name"] for tool in listed["result"]["tools"]], where
                answer = await host.call("quick", key=name)
                assert answer.get("result", {}).get("content") == [{"type": "text", "text": "quick"}], (answer, where)
                assert_runs(servers[server], name)
            was_cut = relay.cuts > 0
            length += max(7, 3 * step)
        assert length > 100


@pytest.mark.every_case
@pytest.mark.parametrize("era", SERVER)
async def test_many_calls_at_once_are_cut_behind_each_event(era, servers, proxies, before, key):
    server, names = SERVER[era], [f"{key}-{n}" for n in range(20)]
    cut = Cut("event", 1, times=10_000, resumes=True)
    async with Relay(proxies[server], cut) as relay, Host(before(relay.url(), era), era) as host:
        calls = [host.call("long", progress=name, steps=4, interval_ms=20 * n, key=name) for n, name in enumerate(names)]
        for name, answer in zip(names, await asyncio.gather(*calls), strict=True):
            assert answer.get("result", {}).get("content") == [{"type": "text", "text": "done 4"}], (answer, relay.report())
            assert host.progress_of(name) == [1, 2, 3, 4], relay.report()
            assert_runs(servers[server], name)
        assert relay.cuts >= 4 * len(names)


@pytest.mark.every_case
@pytest.mark.parametrize("era", SERVER)
async def test_a_cancel_reaches_the_server_after_an_outage(era, servers, proxies, before, key):
    """The host cancels while the network is away."""
    server = SERVER[era]
    cut = Cut("event", 1, away=2)
    async with Relay(proxies[server], cut) as relay, Host(before(relay.url(), era), era) as host:
        host.call("long", progress=key, steps=1000, interval_ms=INTERVAL_MS, key=key)
        await eventually(lambda: relay.cuts)
        host.cancel_last()

        def told():
            return "\n".join([str(counters(servers[server], key)), relay.report(), *host.noise])

        await eventually(lambda: counters(servers[server], key)["cancelled"], 30, told)
        answer = await host.ask("tools/list")
        assert answer["result"]["tools"], relay.report()
        assert len([line for line in host.lines if "method" not in line and line["id"] == host.last_id - 1]) == 0


@pytest.mark.each_value("clients")
@pytest.mark.parametrize("client", CLIENTS)
async def test_a_program_that_was_killed_is_started_again(client, tmp_path, key):
    """Between two calls of one session, and in a call, which ends in words."""
    stdio.COUNTERS.mkdir(exist_ok=True)
    server = ["node", str(stack.ROOT / "servers/typescript-v1.mjs"), "stdio"]
    program = connect.program(connect.words(server, tmp_path, COUNTERS=stdio.COUNTERS))
    async with Client(client, LEGACY, program, "quick", {"key": f"{key}-0"}, then=True) as running:
        assert await running.outcome(0) == ("result", "quick"), running.transcript
        await kill_server(server, tmp_path)
        running.begin("quick", {"key": f"{key}-1"})
        assert await running.outcome(1) == ("result", "quick"), running.transcript
        running.begin("long", {"steps": 1000, "interval_ms": INTERVAL_MS, "key": f"{key}-2"})
        await running.until(lambda said: said.progress[:1] == [1])
        await kill_server(server, tmp_path)
        ending, words = await running.outcome(2)
        assert ending == "error" and WARNING in words, running.transcript
        running.begin("quick", {"key": f"{key}-3"})
        assert await running.outcome(3) == ("result", "quick"), running.transcript
    for n in (0, 1, 3):
        stdio.assert_runs(f"{key}-{n}")


async def kill_server(command, home):
    """Kills the process with this command and home directory, and waits until its parent has noticed that."""
    wanted = [word.encode() for word in command[1:]]
    found = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    found = [pid for pid in found if stdio.command_of(pid)[1 : len(command)] == wanted and is_at_home(pid, home)]
    assert len(found) == 1
    os.kill(found[0], signal.SIGKILL)
    await eventually(lambda: not Path(f"/proc/{found[0]}").exists())


def is_at_home(pid, home):
    with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
        return f"HOME={home}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return False


@pytest.mark.each_value("clients")
@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("cut", [Cut("event", 2), Cut("request", on="answer")], ids=["question", "answer"])
async def test_a_question_is_asked_and_answered_once(client, cut, servers, start, before, key):
    """The connection breaks right behind the question, or before the response to its answer."""
    async with Relay(servers["typescript-v1"]) as upstream:
        proxy = await asyncio.to_thread(start, stack.start_proxy, upstream.port)
        async with Relay(proxy.found["port"], cut) as relay:
            program = connect.program(before(relay.url()))
            said = await run_client(client, LEGACY, program, "ask", {"kind": "sampling", "key": key})
            assert (said.result, said.asked) == ("answered sampled", ["sampling"]), report(relay, said)
            assert relay.cuts == 1
            assert len(upstream.answers) == 1
        assert_runs(servers["typescript-v1"], key)


async def test_a_large_result_that_is_cut_is_whole(start, before, tmp_path):
    """Six megabytes on the wire, cut in the middle three times in one call, with "rst" and "fin"."""
    files = tmp_path / "files"
    files.mkdir()
    (files / "text").write_text("".join(f"{n:09}\n" for n in range(300_000)))
    command = stdio.package("server-filesystem", str(files))
    proxy = await asyncio.to_thread(lambda: start(stack.start_proxy_stdio, command, {}))
    async with Relay(proxy.found["port"]) as relay, Host(before(relay.url())) as host:
        for how in ("rst", "fin"):
            relay.cut, relay.cuts = Cut("final", how=how, times=3, resumes=True), 0
            answer = await host.call("read_text_file", path=str(files / "text"))
            text = answer.get("result", {}).get("content", [{}])[0].get("text")
            assert text == (files / "text").read_text(), (str(answer)[:200], relay.report())
            assert relay.cuts == 3


# Clients whose deadline cancels a call.
CANCELLING = [who for who in WHO if who.values[0] in ("typescript-v1", "typescript-v2", "rmcp")]


@pytest.mark.each_value
@pytest.mark.parametrize("client, era", CANCELLING)
@pytest.mark.parametrize("cut", [None, Cut("head"), Cut("event", 0)], ids=["uncut", "head", "event-0"])
async def test_a_deadline_of_the_host_cancels_the_call(client, era, cut, servers, proxies, before, key):
    """Once, and the session goes on."""
    port = servers[SERVER[era]]
    async with Relay(proxies[SERVER[era]], cut) as relay:
        silent, flags = {"interval_ms": 60_000, "key": key}, ("--deadline-ms", "1500")
        program = connect.program(before(relay.url(), era))
        async with Client(client, era, program, "silent", silent, then=True, flags=flags) as running:
            ending, _ = await running.outcome(0)
            assert ending == "error", report(relay, running.transcript)
            await eventually(lambda: counters(port, key) == {"started": 1, "finished": 0, "cancelled": 1})
            running.begin("quick", {"key": f"{key}-quick"})
            assert await running.outcome(1) == ("result", "quick"), report(relay, running.transcript)


async def test_sessions_go_on_after_restarts(clients, start, before, key):
    """Of the server, and of the proxy with its store in memory: no client opens another session."""
    server = await asyncio.to_thread(restarts.Restarted, start, "typescript-v1")
    listen = stack.free_port()
    proxy = await asyncio.to_thread(start, stack.start_proxy, server.port, listen=listen)
    async with contextlib.AsyncExitStack() as running:

        async def open_one(name):
            relay = await running.enter_async_context(Relay(listen))
            program = connect.program(before(relay.url()))
            client = Client(name, LEGACY, program, "quick", {"key": f"{key}-{name}-0"}, then=True)
            return await running.enter_async_context(client), relay, name

        async def assert_goes_on(session, n):
            client, relay, name = session
            if n > 0:
                client.begin("quick", {"key": f"{key}-{name}-{n}"})
            assert await client.outcome(n) == ("result", "quick"), report(relay, client.transcript)
            assert_runs(server.port, f"{key}-{name}-{n}")

        sessions = [await open_one(name) for name in clients]
        await together(*(assert_goes_on(session, 0) for session in sessions))
        await server.restart()
        await together(*(assert_goes_on(session, 1) for session in sessions))
        proxy.kill()
        await asyncio.to_thread(start, stack.start_proxy, server.port, listen=listen)
        await together(*(assert_goes_on(session, 2) for session in sessions))
        await together(*(client.finish() for client, *_ in sessions))


@pytest.mark.each_value("clients")
@pytest.mark.parametrize("client, era", WHO)
async def test_a_proxy_that_is_killed_in_a_call_ends_it_in_words(client, era, servers, start, before, key):
    """Its successor at the same address does not know the call, and does not run it."""
    port, listen = servers[SERVER[era]], stack.free_port()
    proxy = await asyncio.to_thread(start, stack.start_proxy, port, listen=listen)
    async with Relay(listen) as relay:
        program = connect.program(before(relay.url(), era))
        tool, arguments, _ = SERVERS[SERVER[era]].long(200, INTERVAL_MS, key)
        async with Client(client, era, program, tool, arguments) as calling:
            await calling.until(lambda said: said.progress[:1] == [1])
            proxy.kill()
            await asyncio.to_thread(start, stack.start_proxy, port, listen=listen)
            said = await calling.finish()
            assert said.ending == "error" and WARNING in said.error, report(relay, said)
            assert counters(port, key)["started"] == 1


@pytest.mark.parametrize("server", ["typescript-v1", "everything"])
async def test_a_client_that_asks_first_has_the_revision_of_an_older_server(server, servers, before, key):
    """The server's questions reach it: one in a call, and that for roots outside."""
    kind = SERVERS[server]
    tool, arguments, words = kind.quick(key) if kind.foreign else ("ask", {"kind": "sampling", "key": key}, "answered sampled")
    program = connect.program(before(f"http://127.0.0.1:{servers[server]}/mcp"))
    async with Client("typescript-v2", AUTO, program, tool, arguments, then=True) as client:
        assert await client.outcome(0) == ("result", words), client.transcript
        said = client.transcript
        assert said.lines[0][1] == {"event": "connected", "protocol": PROTOCOL[LEGACY]}
        await client.until(lambda said: said.asked == ["roots" if kind.requests_roots else "sampling"])


@pytest.mark.each_value("clients")
@pytest.mark.parametrize("client", CLIENTS)
async def test_without_serve_lists_are_repeated_and_calls_are_not(client, servers, before, key):
    port = servers["typescript-v1"]
    async with Relay(port, Cut("request", on="tools/list")) as relay:
        program = connect.program(before(relay.url()))
        async with Client(client, LEGACY, program, "quick", {"key": f"{key}-quick"}, then=True) as running:
            assert await running.outcome(0) == ("result", "quick"), report(relay, running.transcript)
            await running.list_tools(1)
            assert relay.cuts == 1, relay.report()
            for n, place in enumerate(["request", "head"], 2):
                relay.cut, relay.cuts = Cut(place), 0
                running.begin("long", {"steps": 1, "interval_ms": 300, "key": f"{key}-{place}"})
                ending, words = await running.outcome(n)
                assert ending == "error" and WARNING in words, report(relay, running.transcript)
                assert relay.cuts == 1
                assert counters(port, f"{key}-{place}")["started"] == 1


async def has_ended(program, limit=END_LIMIT):
    await eventually(lambda: not stdio.is_running(program), limit)


async def assert_cancelled(relay, port, era, key):
    """The server has the cancel of the one run, and the end of the session."""
    await eventually(lambda: counters(port, key) == {"started": 1, "finished": 0, "cancelled": 1}, END_LIMIT)
    ends = [exchange for exchange in relay.exchanges if exchange.method == "DELETE"]
    assert len(ends) == (1 if era == LEGACY else 0), relay.report()


@pytest.mark.every_case
@pytest.mark.parametrize("era", SERVER)
async def test_nothing_is_left_of_a_host_that_is_killed_in_a_call(era, servers, proxies, before, key):
    server = SERVER[era]
    async with Relay(proxies[server]) as relay:
        program, arguments = connect.program(before(relay.url(), era)), {"steps": 400, "interval_ms": INTERVAL_MS, "key": key}
        async with Client("typescript-v2", era, program, "long", arguments) as host:
            await host.until(lambda said: said.progress[:1] == [1])
            [child] = stdio.children_of(host.pid)
            os.kill(host.pid, signal.SIGKILL)
            await has_ended(child)
            await assert_cancelled(relay, servers[server], era, key)


@pytest.mark.every_case
@pytest.mark.parametrize("era", SERVER)
async def test_nothing_is_left_of_a_host_that_closes_stdin_in_a_call(era, servers, proxies, before, key):
    server = SERVER[era]
    async with Relay(proxies[server]) as relay, Host(before(relay.url(), era), era) as host:
        host.call("long", progress=key, steps=400, interval_ms=INTERVAL_MS, key=key)
        await eventually(lambda: host.progress_of(key))
        host.process.stdin.close()
        await has_ended(host.process.pid)
        await assert_cancelled(relay, servers[server], era, key)


@pytest.fixture
def island():
    """A network namespace with links to this machine for the host, and for the server."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    with Island(["host", "server"]) as island:
        yield island


@pytest.mark.timeout(400)
@pytest.mark.every_case
@pytest.mark.parametrize("era", SERVER)
async def test_a_silent_call_outlives_forty_seconds_of_lost_packets(era, island, servers, start, before, key):
    """It ends meanwhile. Its result comes within 15 seconds after the network: dead connections are found, and others tried."""
    server = SERVER[era]
    async with Pipe(island.here("server"), servers[server]) as pipe:
        proxy = await asyncio.to_thread(
            start,
            stack.start_proxy_before,
            f"http://{island.here('server')}:{pipe.port}/mcp",
            host=island.there("host"),
            within=island.within,
            DELIVERY__HEARTBEAT_SECS=3600,
        )
        url = f"http://{island.there('host')}:{proxy.found['port']}/mcp"
        async with Host(before(url, era, "--allow-http"), era) as host:
            calling = host.call("silent", interval_ms=20_000, key=key)
            await eventually(lambda: counters(servers[server], key)["started"] == 1)
            island.darken("host")
            await asyncio.sleep(40)
            island.lighten("host")
            async with asyncio.timeout(15):
                answer = await calling
            assert answer.get("result", {}).get("content") == [{"type": "text", "text": "done"}], (answer, host.noise)
            assert_runs(servers[server], key)
