"""Servers on stdio, and proxies that start them."""

import contextlib
import os
import signal
import tempfile
from dataclasses import dataclass
from pathlib import Path

from harness import stack
from harness.raw import ask
from harness.stack import EVERYTHING_STDIO, LEGACY, MODERN, PROTOCOL, EverythingKind, PlaywrightKind, ROOT, ServerKind, python

# Folder of the counters that the suite's own servers keep on stdio, one file for each key.
COUNTERS = Path(tempfile.gettempdir()) / f"mcp-resume-e2e-{os.getuid()}-counters"

# More starts than the default in a minute, and an early end of what clients leave behind: all cases share a proxy.
SHARED = {"UPSTREAM__STARTS_PER_MINUTE": 6000, "UPSTREAM__CHILD_IDLE_SECS": 15}


@dataclass(frozen=True)
class FixedKind(ServerKind):
    """A published server without a long tool. `tool`: its quick call; `words`: the start of the result."""

    tool: tuple = ()
    words: str = ""
    foreign = True

    def quick(self, key):
        name, arguments = self.tool
        return name, dict(arguments), self.words


def package(name, *arguments):
    return ("node", f"node_modules/@modelcontextprotocol/{name}/dist/index.js", *arguments)


# Servers that have the suite's tools, or a long tool of their own.
LONG = {
    "typescript-v1": ServerKind(("node", "servers/typescript-v1.mjs", "stdio")),
    "typescript-v2": ServerKind(("node", "servers/typescript-v2.mjs", "stdio"), (LEGACY, MODERN)),
    "everything": EverythingKind(EVERYTHING_STDIO),
    "python-mcp1": ServerKind((python("mcp1"), "servers/python_mcp1.py", "stdio")),
    "python-mcp2": ServerKind((python("mcp2"), "servers/python_mcp2.py", "stdio"), (LEGACY, MODERN)),
    "fastmcp": ServerKind((python("fastmcp"), "servers/python_fastmcp.py", "stdio"), (LEGACY, MODERN)),
    "rmcp": ServerKind((str(ROOT / "clients/rmcp/target/debug/rmcp-server"), "stdio"), (LEGACY, MODERN)),
}

SERVERS = LONG | {
    "filesystem": FixedKind(
        package("server-filesystem", str(ROOT / "servers")),
        tool=("list_allowed_directories", ()),
        words="Allowed directories:",
    ),
    "memory": FixedKind(
        package("server-memory"),
        env=(("MEMORY_FILE_PATH", str(COUNTERS / "memory.jsonl")),),
        tool=("read_graph", ()),
        words="{",
    ),
    "playwright": PlaywrightKind(
        (
            *("node", "node_modules/@playwright/mcp/cli.js", "--headless", "--isolated"),
            *("--executable-path", str(ROOT / "servers/no-browser.sh")),
        )
    ),
}


def start_proxy(name, listen=0, admin=0, **settings):
    """Starts a proxy that starts one of `SERVERS` for each session."""
    COUNTERS.mkdir(exist_ok=True)
    kind = SERVERS[name]
    return stack.start_proxy_stdio(kind.command, {**dict(kind.env), "COUNTERS": COUNTERS}, listen, admin, **settings)


async def start_shared(port):
    """Has the proxy at `port` start the process that clients at 2026-07-28 share. SDKs that ask for the revision wait ten seconds for it."""
    of_client = {"protocolVersion": PROTOCOL[MODERN], "clientInfo": {"name": "raw", "version": "1"}, "clientCapabilities": {}}
    meta = {f"io.modelcontextprotocol/{name}": value for name, value in of_client.items()}
    body = {"jsonrpc": "2.0", "id": 0, "method": "server/discover", "params": {"_meta": meta}}
    answer = await ask(port, body=body, mcp_protocol_version=PROTOCOL[MODERN], mcp_method="server/discover")
    assert answer.status == 200, await answer.body()
    await answer.body()


def counters(key):
    """The runs of `key` at all servers on stdio."""
    file = COUNTERS / key
    lines = file.read_text().split() if file.exists() else []
    return {what: lines.count(what) for what in ("started", "finished", "cancelled")}


def assert_runs(key, **expected):
    """The tool ran as often as expected: by default once, to its end."""
    assert counters(key) == {"started": 1, "finished": 1, "cancelled": 0} | expected


def children(pid):
    """The processes that the proxy with this PID has started, without its guard."""
    return [child for child in children_of(pid) if b"__guard" not in command_of(child)]


def children_of(pid):
    """The processes that another one has started; none of one that has ended meanwhile."""
    found = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += [int(child) for child in (task / "children").read_text().split()]
    return found


def command_of(pid):
    """The words of a process' command, in bytes; none of one that has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return []


def is_running(pid):
    """True while the process is there, and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def kill_children(pid):
    """Kills the servers of a proxy with SIGKILL; returns their number."""
    killed = children(pid)
    for child in killed:
        os.kill(child, signal.SIGKILL)
    return len(killed)


class Restarted:
    """A proxy before one of `SERVERS`, with the same addresses after each start; `start` is the fixture."""

    def __init__(self, start, name, **settings):
        self._start, self._name, self._settings = start, name, settings
        self.port, self.admin = stack.free_port(), stack.free_port()
        self.begin()

    def begin(self):
        places = {"listen": self.port, "admin": self.admin}
        self._process = self._start(start_proxy, self._name, **places, **self._settings)

    @property
    def pid(self):
        return self._process.pid

    def kill(self):
        """Kills the proxy with SIGKILL."""
        self._process.kill()
