"""A token that ends in mid-call: the stock TypeScript SDK with an auth provider, before a server that answers 401 late.

| the 401 comes | the call that meets it | the next call |
|---|---|---|
| before the proxy responds by itself | is repeated with a new token by the SDK | succeeds |
| after that | ends with an error, which has the challenge | meets the 401 itself, is repeated with a new token, and succeeds |
"""

import asyncio
import json
import urllib.request

import pytest

from harness import stack

pytestmark = pytest.mark.anyio


async def calls(port, ms):
    """The outcomes of the slow call and of the quick one."""
    command = ("node", "clients/typescript-v1-auth.mjs", "--url", f"http://127.0.0.1:{port}/mcp", "--ms", str(ms))
    process = await asyncio.create_subprocess_exec(*command, cwd=stack.ROOT, stdout=asyncio.subprocess.PIPE)
    out, _ = await asyncio.wait_for(process.communicate(), stack.START_LIMIT)
    return [json.loads(line) for line in out.splitlines()]


def counters(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/counters") as answer:
        return json.load(answer)


@pytest.mark.parametrize("ms, is_late", [(100, False), (3000, True)])
async def test_a_client_goes_on_with_a_new_token(ms, is_late, start):
    server = start(stack.start_program, ("node", "servers/tokens.mjs"))
    proxy = start(stack.start_proxy, server.found["port"])
    slow, quick = await calls(proxy.found["port"], ms)
    if is_late:
        assert slow["error"]["code"] == -32010, slow
        assert slow["error"]["data"]["httpStatus"] == 401, slow
        assert slow["error"]["data"]["wwwAuthenticate"] == 'Bearer error="invalid_token"', slow
        assert slow["token"] == "token-1", slow
    else:
        assert (slow["text"], slow["token"]) == ("slow", "token-2"), slow
    assert (quick["text"], quick["token"]) == ("quick", "token-2"), quick
    expected = {"refused": ["slow", "quick"] if is_late else ["slow"], "refreshed": 1}
    assert counters(server.found["port"]) == expected
