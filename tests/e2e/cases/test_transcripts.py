"""The exchanges in the documentation of each dialect equal those on the wire."""

import pytest

import transcript

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("dialect", transcript.DIALECTS)
async def test_recorded_again_it_is_the_same(dialect):
    written = transcript.place(dialect)
    assert written.exists(), "record it: tests/e2e/transcript.py"
    assert await transcript.record(dialect) == written.read_text()
