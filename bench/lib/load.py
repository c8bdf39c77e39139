"""The scripted upstream and the load tool, both of the `mcp-resume-bench` binary."""

import contextlib
import http.client
import json
import subprocess
import sys
import time

from lib.processes import Proxy, running


@contextlib.contextmanager
def start_upstream(bench):
    """Starts the scripted MCP server until the block ends: its announcement (`url`, `acks`), and its process."""
    child = subprocess.Popen([bench, "upstream"], stdout=subprocess.PIPE, text=True)
    with running(child):
        announced = json.loads(child.stdout.readline())
        yield announced, Proxy(announced["url"], child)


def upstream_counts(url):
    """The upstream's own counts: calls begun with events, events written."""
    connection = http.client.HTTPConnection(url.split("/")[2])
    with contextlib.closing(connection):
        connection.request("GET", "/runs")
        return json.load(connection.getresponse())


class Load:
    """A running load. It stops at named marks until `go_on`, and prints its figures at the end."""

    def __init__(self, command):
        self.command = [str(word) for word in command]
        self.child = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def reach(self, mark):
        """Waits until the load stops at `mark`."""
        line = self.child.stdout.readline()
        if not line or json.loads(line).get("at") != mark:
            sys.exit(f"failed: {' '.join(self.command)}: {line or 'ended'} where {mark} was due")

    def go_on(self):
        self.child.stdin.write("\n")
        self.child.stdin.flush()

    def figures(self, at_mark=None):
        """Runs the load to its end and returns its figures; `at_mark` is called with the name of each mark on the way."""
        figures = {}
        for line in self.child.stdout:
            message = json.loads(line)
            if "at" in message:
                # Allows the processes to settle before they are measured.
                time.sleep(0.3)
                at_mark(message["at"])
                self.go_on()
            else:
                figures = message
        if self.child.wait() != 0:
            sys.exit(f"failed: {' '.join(self.command)}")
        return figures


@contextlib.contextmanager
def start_load(bench, url, *arguments):
    """Starts a load on `url`, and ends it with the block."""
    load = Load([bench, "load", url, *arguments])
    with running(load.child):
        yield load


def run_load(bench, url, *arguments):
    """Runs a load without marks, and returns its figures."""
    with start_load(bench, url, *arguments) as load:
        return load.figures()
