"""Clients of 2026-07-28 behind a balancer, whose sidecars translate for a server that speaks the revisions with sessions alone."""

import asyncio

import pytest

from harness import stack
from harness.balancer import BalancerProcess
from harness.checks import assert_runs
from harness.raw import ask
from harness.replicas import Replica
from harness.stack import MODERN, PROTOCOL, run_client, together

pytestmark = pytest.mark.anyio

CLIENTS = ["typescript-v2", "fastmcp", "python-mcp2", "rmcp"]
SERVER = "typescript-v1"
SIDECAR = {"BRIDGE__MODERN_CLIENTS": "always", "DIALECTS__INPUT_GRACE_MS": 100}
BALANCER = {"BALANCE__HEALTH_MS": 250, "BALANCE__HEALTH_TIMEOUT_MS": 1000, "BALANCE__SLOW_START_SECS": 0}
STORES = ["memory", "redis"]


@pytest.fixture
def fleet(start, servers, redis, key):
    """Three sidecars in front of one server, and a balancer in front of them."""

    async def run(store):
        shared = {"STORE__KIND": "redis", "STORE__URL": redis, "STORE__PREFIX": key} if store == "redis" else {}
        settings = [{"REPLICA__NAME": name, **SIDECAR, **shared} for name in ("one", "two", "three")]
        sidecars = await together(*(asyncio.to_thread(Replica, start, servers[SERVER], **own) for own in settings))
        urls = [f"http://127.0.0.1:{sidecar.port}" for sidecar in sidecars]
        balancer = await asyncio.to_thread(BalancerProcess, start, urls, **BALANCER)
        await together(*(balancer.knows(sidecar.port, "ready") for sidecar in sidecars))
        return sidecars, balancer

    return run


def question(request_id, key, **retry):
    """A call of the tool that asks, and its headers."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": PROTOCOL[MODERN],
        "io.modelcontextprotocol/clientInfo": {"name": "raw", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}},
    }
    arguments = {"kind": "elicitation", "key": key}
    params = {"name": "ask", "arguments": arguments, "_meta": meta, **retry}
    body = {"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": params}
    headers = {"mcp_protocol_version": PROTOCOL[MODERN], "mcp_method": "tools/call", "mcp_name": "ask"}
    return {"body": body, **headers}


@pytest.mark.each_value
@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("client", CLIENTS)
async def test_answers_reach_the_call_that_waits(client, store, fleet, servers, key):
    """Each request goes to the replica with the least load, but for the answers: they would find none of the calls at two of three."""
    _, balancer = await fleet(store)
    url = f"http://127.0.0.1:{balancer.port}/mcp"
    names = [f"{key}-{n}" for n in range(4)]
    calls = (run_client(client, MODERN, url, "ask", {"kind": "elicitation", "key": name}) for name in names)
    for said in await together(*calls):
        assert (said.result, said.error) == ("answered elicited", None)
    for name in names:
        assert_runs(servers[SERVER], name)


@pytest.mark.parametrize("store", STORES)
async def test_answers_for_a_call_whose_replica_is_gone_are_refused(store, fleet, key):
    sidecars, balancer = await fleet(store)
    asked = (await (await ask(balancer.port, **question(1, key))).messages())[-1]["result"]
    assert asked["resultType"] == "input_required"
    state = asked["requestState"]
    reports = [await (await ask(at.port, method="GET", path="/.well-known/mcp-resume")).json() for at in sidecars]
    [owner] = [at for at, known in zip(sidecars, reports, strict=True) if state.startswith(f"{known['owner']}~")]
    owner.kill()
    await balancer.knows(owner.port, "down")
    answers = {"q1": {"action": "accept", "content": {"answer": "elicited"}}}
    refused = await ask(balancer.port, **question(2, key, requestState=state, inputResponses=answers))
    assert (refused.status, (await refused.json())["error"]["code"]) == (400, -32602)
