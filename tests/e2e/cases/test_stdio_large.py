"""Large results of a published server on stdio: they arrive with default settings, or fail in words."""

import asyncio
import base64
import json
import os

import pytest

from harness import stack, stdio
from harness.raw import ask, call, open_session

pytestmark = pytest.mark.anyio

MB = 1_000_000


async def outcome(answer):
    """The message at the end of a response."""
    body = (await answer.body()).decode()
    if not answer.headers["content-type"].startswith("text/event-stream"):
        return json.loads(body)
    lines = [line.removeprefix("data: ") for line in body.split("\n") if line.startswith("data: {")]
    return json.loads(lines[-1])


@pytest.fixture
async def filesystem(start, tmp_path):
    """The port of a proxy with default settings, before a server for the files of this folder."""
    command = stdio.package("server-filesystem", str(tmp_path))
    proxy = await asyncio.to_thread(lambda: start(stack.start_proxy_stdio, command, {}))
    return proxy.found["port"]


@pytest.mark.parametrize("size", [12_500_000, 20 * MB])
async def test_a_file_arrives(size, filesystem, tmp_path):
    """In base64 it has four thirds of its bytes, and the server sends it twice: on 33 and 53 MB."""
    content = os.urandom(size)
    (tmp_path / "image.png").write_bytes(content)
    session = await open_session(filesystem)
    answer = await ask(filesystem, body=call(1, "read_media_file", path=str(tmp_path / "image.png")), **session)
    result = (await outcome(answer))["result"]
    assert base64.b64decode(result["content"][0]["data"]) == content


async def test_a_file_over_the_limit_is_an_error(filesystem, tmp_path):
    """The session goes on."""
    (tmp_path / "image.png").write_bytes(os.urandom(60 * MB))
    session = await open_session(filesystem)
    answer = await ask(filesystem, body=call(1, "read_media_file", path=str(tmp_path / "image.png")), **session)
    error = (await outcome(answer))["error"]
    assert (error["code"], error["data"]["mayHaveRun"]) == (-32010, True)
    assert "over the size limit" in error["message"]
    answer = await ask(filesystem, body=call(2, "list_directory", path=str(tmp_path)), **session)
    assert "image.png" in (await outcome(answer))["result"]["content"][0]["text"]
