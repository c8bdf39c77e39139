"""A deploy behind nginx, which answers 502, 503 or 504 as long as no server is there.

Clients notice nothing of it, and no call with effects is sent twice.
"""

import asyncio

import pytest

from harness import fronts, stack
from harness.checks import assert_runs
from harness.relay import Relay
from harness.restarts import Restarted
from harness.sessions import sessions_at
from harness.stack import CLIENTS, LEGACY, Client, eventually

pytestmark = pytest.mark.anyio

SERVER = "typescript-v1"
# Time without a server.
AWAY = 3.0


class Deploy:
    """A server behind nginx, a relay that counts, and the proxy in front of them."""

    def __init__(self, start, folder, status):
        self.server = Restarted(start, SERVER)
        gateway = start(fronts.start_gateway, folder, self.server.port)
        self.counted = Relay(gateway.found["port"])
        self.proxy = start(stack.start_proxy, self.counted.port).found["port"]
        # A server that is gone is nginx's own reason for 502. It keeps its sessions in the other deploys.
        self._file = None if status == 502 else folder / str(status)

    async def begin(self):
        if self._file:
            self._file.touch()
        else:
            await self.server.end()

    async def end(self):
        if self._file:
            self._file.unlink()
        else:
            await self.server.begin()


def has_asked(relay, method):
    return any(message.get("method") == method for one in relay.exchanges for message in one.messages)


@pytest.mark.each_value
@pytest.mark.parametrize("status", [502, 503, 504])
@pytest.mark.parametrize("client", CLIENTS)
async def test_clients_notice_nothing(client, status, start, key, tmp_path):
    """One begins during the deploy, one lists its tools then, and its GET stream stays open."""
    deploy = await asyncio.to_thread(Deploy, start, tmp_path / "nginx", status)
    async with deploy.counted, sessions_at(deploy.proxy, SERVER, key, [client]) as sessions:
        session = sessions[client]
        await eventually(lambda: session.listens)
        await deploy.begin()
        async with Relay(deploy.proxy) as relay:
            async with Client(client, LEGACY, relay.url(), "quick", {"key": f"{key}-new"}) as new:
                # A client's process may take longer to start than the proxy retries a list.
                await eventually(lambda: relay.exchanges)
                session.client.ask(list="tools")
                await eventually(lambda: has_asked(session.relay, "tools/list"))
                await asyncio.sleep(AWAY)
                assert (session.client.transcript.outcomes[1:], new.transcript.lines) == ([], []), session.report()
                await deploy.end()
                assert await session.client.outcome(1) == ("result", "list"), session.report()
                said = await new.finish()
        assert said.outcomes == [("result", "quick")], relay.report()
        for each in (relay, session.relay):
            assert [one.status for one in each.exchanges if (one.status or 0) >= 400] == [], each.report()
        assert session.handshakes == 1, session.report()
        # nginx has answered in the server's place.
        refused = [one for one in deploy.counted.exchanges if one.status == status]
        assert len(refused) >= 2, deploy.counted.report()
        session.begin(f"{key}-after")
        assert await session.ended_well(2, f"{key}-after"), session.report()
    assert_runs(deploy.server.port, f"{key}-new")


@pytest.mark.each_value
@pytest.mark.parametrize("status", [502, 503, 504])
@pytest.mark.parametrize("client", CLIENTS)
async def test_a_call_with_effects_is_sent_once(client, status, start, key, tmp_path):
    """nginx does not say whether the server got it."""
    deploy = await asyncio.to_thread(Deploy, start, tmp_path / "nginx", status)
    async with deploy.counted, sessions_at(deploy.proxy, SERVER, key, [client]) as sessions:
        session = sessions[client]
        await deploy.begin()
        session.begin(f"{key}-away")
        ending, _ = await session.client.outcome(1) or ("error", "the client has left")
        assert ending == "error", session.report()
        sent = [call for call in deploy.counted.calls if f"{key}-away".encode() in call.body]
        assert [call.status for call in sent] == [status], deploy.counted.report()
        await deploy.end()
    assert_runs(deploy.server.port, f"{key}-away", started=0, finished=0)
