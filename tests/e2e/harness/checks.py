"""Assertions that several files of cases share."""

from harness.stack import counters


def assert_whole(relay, said, steps, done):
    """The call completed: every progress notification once and in order, then the result."""
    story = "\n".join([relay.story(), *said.noise])
    assert (said.progress, said.result, said.error) == (list(range(1, steps + 1)), done, None), story
    # In this order as well, and told of nothing after the end.
    told = [line["event"] for _, line in said.lines if line["event"] in ("progress", "result")]
    assert told == ["progress"] * steps + ["result"]


def assert_runs(port, key, **expected):
    """The tool ran as often as expected: by default once, to its end."""
    assert counters(port, key) == {"started": 1, "finished": 1, "cancelled": 0} | expected

