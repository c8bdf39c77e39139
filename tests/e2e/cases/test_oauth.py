"""A server whose calls need access tokens, behind `listen.public_url`.

Stock clients find the authorization server through the proxy, sign in, and continue with fresh tokens. The issuer gives tokens for the
public URL alone, written exactly so, and the server takes no others.

```text
client ──► relay (cuts) ──► mcp-resume ──► server
   └──────────────────────► issuer
client ──► nginx (TLS) ──► relay (cuts) ──► mcp-resume ──► server
   └─────► nginx (TLS) ──► issuer
```
"""

import json
import urllib.request

import pytest

from harness import fronts, stack
from harness.checks import assert_runs
from harness.relay import Cut, Relay
from harness.stack import CLIENTS, LEGACY, Client, free_port, together

pytestmark = pytest.mark.anyio

# The server's own path is another.
PATH = "/tools/mcp"

# A token ends while the call runs: it lasts for this time, and for up to a second longer at the server. The client resumes later.
TOKEN_SECS = 3
STEPS, INTERVAL_MS = 8, 500
CUT = Cut("event", 7)

# Clients that look at the time, and have a fresh token before they resume. TypeScript's wait for a 401.
REFRESH_FIRST = ["python-mcp1", "python-mcp2", "fastmcp", "rmcp"]

# A server without messages of its own may send the head of a GET stream only with the first one.
GET_AFTER_SECS = 60

# A server that names itself by its own address, and one that names itself as a proxy in front of it says.
NAMES = ["own", "forwarded"]


def issued(port):
    """What the authorization server has issued, and what it and the server at `port` have refused."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/counters", timeout=stack.START_LIMIT) as answer:
        return json.load(answer)


def start_server(start, public, names="own", **env):
    command = ("node", "servers/protected.mjs")
    return start(stack.start_program, command, AUDIENCE=public, NAMES=names, **env).found["port"]


def start_proxy(start, server, public, **settings):
    return start(stack.start_proxy, server, LISTEN__PUBLIC_URL=public, **settings).found["port"]


def signed_in(name, url, tool, arguments, **more):
    return Client(name, LEGACY, url, tool, arguments, then=True, flags=("--login", "true"), **more)


async def call_and_call_again(name, url, key, env=None):
    """A call in which the token ends, and a quick one with a fresh token."""
    arguments = {"steps": STEPS, "interval_ms": INTERVAL_MS, "key": key}
    async with signed_in(name, url, "long", arguments, env=env) as client:
        client.begin("quick", {"key": f"{key}-quick"})
        return await client.finish()


def assert_signed_in_once(server):
    """One sign-in, fresh tokens afterwards, and nothing that the authorization server refused."""
    found = issued(server)
    assert (found["registrations"], len(found["authorized"]), found["refused"]) == (1, 1, []), found
    assert found["refreshes"] >= 1, found


def assert_continued(client, relay, said, server, key):
    """Both calls have their results after the one cut, and the tool of the first ran once."""
    report = "\n".join([relay.report(), str(said.outcomes), *said.noise])
    assert said.progress == list(range(1, STEPS + 1)), report
    assert said.outcomes == [("result", f"done {STEPS}"), ("result", "quick")], report
    assert relay.cuts == 1, report
    # A 401 to it would be the end of the call: TypeScript's SDK 1 asks for a token then, and forgets what it was resuming.
    assert [resume.status for resume in relay.resumes] == [200], report
    [resume], [call] = relay.resumes, [call for call in relay.calls if call.cut]
    is_fresh = resume.headers["authorization"] != call.headers["authorization"]
    assert is_fresh == (client in REFRESH_FIRST), report
    assert_runs(server, key)
    assert_signed_in_once(server)


@pytest.mark.each_value
@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize("client", CLIENTS)
async def test_a_cut_call_continues_after_the_end_of_its_token(client, names, start, key):
    async with Relay(0, CUT) as relay:
        public = relay.url(PATH)
        server = start_server(start, public, names, TOKEN_SECS=str(TOKEN_SECS))
        relay.redirect(start_proxy(start, server, public))
        said = await call_and_call_again(client, public, key)
        assert_continued(client, relay, said, server, key)


# One of each kind of TLS. rmcp's client has none here.
@pytest.mark.each_value
@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize("client", ["typescript-v2", "python-mcp1", "python-mcp2"])
async def test_behind_nginx_with_tls(client, names, start, key, tmp_path):
    certificate = fronts.make_certificate(tmp_path)
    front, issuer = free_port(), free_port()
    public, issuer_url = f"https://127.0.0.1:{front}{PATH}", f"https://127.0.0.1:{issuer}"
    behind = free_port()
    settings = {"ISSUER": issuer_url, "ISSUER_PORT": str(behind), "TOKEN_SECS": str(TOKEN_SECS)}
    server = start_server(start, public, names, **settings)
    proxy = start_proxy(start, server, public, LISTEN__TRUSTED_PROXIES="127.0.0.1")
    async with Relay(proxy, CUT) as relay:
        start(fronts.start_nginx, tmp_path / "front", relay.port, certificate, front)
        start(fronts.start_nginx, tmp_path / "issuer", behind, certificate, issuer)
        said = await call_and_call_again(client, public, key, env=certificate.trusted)
        assert_continued(client, relay, said, server, key)


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_scope_that_is_asked_for_later(client, start, key):
    """The tool needs a scope that the token lacks. Each client does as without a proxy: some ask for it."""

    async def through(url, server):
        async with signed_in(client, url, "admin", {"key": key}) as running:
            ending = await running.outcome(0)
        return ending, [sorted(scope.split()) for scope in issued(server)["authorized"]]

    port = free_port()
    direct = f"http://127.0.0.1:{port}/mcp"
    straight = start_server(start, direct, PORT=str(port))
    listen = free_port()
    public = f"http://127.0.0.1:{listen}{PATH}"
    server = start_server(start, public)
    start_proxy(start, server, public, listen=listen)
    (without, asked_without), (ending, asked) = await together(through(direct, straight), through(public, server))
    assert (ending[0], asked) == (without[0], asked_without), (ending, without)
    if client in ("typescript-v2", "python-mcp1", "python-mcp2", "fastmcp"):
        assert ending == ("result", "admin")
        assert "admin" not in asked[0] and {"tools", "admin"} <= set(asked[1]), asked
        assert_runs(server, key)


@pytest.mark.parametrize("client", ["python-mcp1", "python-mcp2", "fastmcp"])
async def test_a_server_that_keeps_its_get_stream_waiting(client, start, key):
    """Python's OAuth sends nothing else before it has the stream's head, which comes at once from the proxy."""
    async with Relay(0) as relay:
        public = relay.url(PATH)
        server = start_server(start, public, GET_AFTER_MS=str(GET_AFTER_SECS * 1000))
        relay.redirect(start_proxy(start, server, public))
        async with signed_in(client, public, "long", {"steps": 1, "interval_ms": 10, "key": key}) as running:
            # By then the client has asked for the stream.
            running.begin("quick", {"key": f"{key}-quick"})
            assert await running.outcome(1, GET_AFTER_SECS / 2) == ("result", "quick"), relay.report()
            assert [one.status for one in relay.exchanges if one.kind == "standalone"][-1:] == [200], relay.report()


@pytest.mark.one_case
@pytest.mark.parametrize("client", CLIENTS)
async def test_without_a_public_url_no_client_signs_in(client, start, key):
    """The contrast: the server names another URL than that which the client was given."""
    port = free_port()
    server = start_server(start, f"http://127.0.0.1:{port}/mcp", PORT=str(port))
    proxy = start(stack.start_proxy, server).found["port"]
    async with signed_in(client, f"http://127.0.0.1:{proxy}/mcp", "quick", {"key": key}) as running:
        assert (await running.outcome(0))[0] == "error"
    assert issued(server)["authorized"] == []
