"""Steps that the cases of several dialects share."""

import asyncio

import pytest

from harness.checks import assert_refused
from harness.dialects.wire import Refused
from harness.raw import call


async def until(happened, limit=20.0):
    """Polls until the condition holds, as a polling client does."""
    async with asyncio.timeout(limit):
        while not await happened():
            await asyncio.sleep(0.1)


async def cut_off(dialect, port, key, steps=4, interval_ms=200, seen=1, request_id=7, **headers):
    """A client whose call lost its connection after some progress."""
    client = await dialect.connect(port, **headers)
    await client.begin(call(request_id, "long", steps=steps, interval_ms=interval_ms, key=key))
    await client.until_progress(seen)
    client.drop()
    return client


async def assert_token_refused(client, **wrong):
    """Asserts that neither form of the token's use is served; returns the error."""
    status, looked = await client.look(**wrong)
    assert_refused(status, looked, client.sent_id)
    with pytest.raises(Refused) as refused:
        await client.resume(confirm=False, **wrong)
    assert_refused(refused.value.status, refused.value.message, client.sent_id)
    return [looked["error"], refused.value.message["error"]]
