"""Traces of calls, as a collector has them: calls of stock clients that are cut, and finished at another replica."""

import asyncio

import pytest

from harness.checks import assert_runs, assert_whole
from harness.collector import Collector
from harness.load import INTERVAL_MS
from harness.relay import Cut, Relay
from harness.replicas import Replica
from harness.stack import LEGACY, SERVERS, START_LIMIT, Client, eventually, together

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("client", ["typescript-v1", "python-mcp1", "rmcp"])
async def test_a_call_that_is_cut_and_finished_at_another_replica_is_one_trace(client, servers, redis, start, key):
    server = "typescript-v1-stateless"
    collector = await asyncio.to_thread(start, Collector)
    shared = {"STORE__KIND": "redis", "STORE__URL": redis, "STORE__PREFIX": key, "OTEL__ENDPOINT": collector.url}
    first, second = await together(
        *(asyncio.to_thread(Replica, start, servers[server], REPLICA__NAME=name, **shared) for name in ("first", "second"))
    )
    await together(first.until(ready=True), second.until(ready=True))
    tool, arguments, done = SERVERS[server].long(5, INTERVAL_MS, key)
    async with (
        Relay(first.port, Cut("event", 2, hold=True)) as relay,
        Client(client, LEGACY, relay.url(), tool, arguments) as calling,
    ):
        await eventually(lambda: relay.cuts == 1, START_LIMIT)
        relay.redirect(second.port)
        relay.release()
        assert_whole(relay, await calling.finish(), 5, done)
    assert_runs(servers[server], key)
    name = f"tools/call {tool}"
    [call] = await collector.named(name)
    await eventually(lambda: len([span for span in collector.spans if span.trace == call.trace]) >= 5)
    of_call = {span.name: span for span in collector.spans if span.trace == call.trace}
    assert set(of_call) == {name, "upstream", "delivery", "resume"}
    deliveries = [span for span in collector.spans if (span.trace, span.name) == (call.trace, "delivery")]
    ends = {span.resource["service.instance.id"]: span.attributes["mcp_resume.delivery.end"] for span in deliveries}
    assert ends == {"first": "interrupted", "second": "complete"}
    assert call.resource["service.instance.id"] == "first"
    assert of_call["resume"].resource["service.instance.id"] == "second"
    assert {span.parent for span in [of_call["upstream"], of_call["resume"], *deliveries]} == {call.id}
    assert (call.parent, call.attributes["mcp_resume.outcome"]) == ("", "completed")
