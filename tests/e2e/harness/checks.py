"""Assertions that several files of cases share."""

from harness.stack import counters


def assert_whole(relay, said, steps, done):
    """The call completed: every progress notification once and in order, then the result."""
    report = "\n".join([relay.report(), *said.noise])
    assert (said.progress, said.result, said.error) == (list(range(1, steps + 1)), done, None), report
    # In this order as well, with no message after the end.
    told = [line["event"] for _, line in said.lines if line["event"] in ("progress", "result")]
    assert told == ["progress"] * steps + ["result"]


def assert_runs(port, key, **expected):
    """The tool ran as often as expected: by default once, to its end."""
    assert counters(port, key) == {"started": 1, "finished": 1, "cancelled": 0} | expected


def assert_ran_once(ports, key):
    """The tool ran once, to its end, at one of the servers."""
    counted = [counters(port, key) for port in ports]
    total = {what: sum(counts[what] for counts in counted) for what in ("started", "finished", "cancelled")}
    assert total == {"started": 1, "finished": 1, "cancelled": 0}, counted



def assert_got(client, steps, done):
    """A client of a dialect got its whole call: every progress notification once and in order, then the result."""
    assert (client.progress, client.text) == (list(range(1, steps + 1)), done), client.methods
    ids = [got.id for got in client.got if got.id is not None]
    assert len(set(ids)) == len(ids), "an event came twice"


def assert_refused(status, message, request_id, code=-32602):
    """A refusal under the caller's id, without any other information."""
    assert (status, message["id"], message["error"]["code"]) == (200, request_id, code)
