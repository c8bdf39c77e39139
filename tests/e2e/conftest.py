"""Starts each server, a proxy with the default settings in front of it, and each Python client's preloaded process, once for
the whole run.

With pytest-xdist the controlling process starts them and passes the ports to its workers. They can be shared, since
each call has a key of its own.
"""

import json
import os
import sys
import uuid
from dataclasses import dataclass

import pytest

from harness import pairs, stack, stdio

pytest.register_assert_rewrite("harness.checks", "harness.dialects.steps", "harness.load")

WORKERS_PER_PROCESSOR = 4

# Servers that some tests need three of.
THREES = ("typescript-v1", "typescript-v1-stateless", "typescript-v2")


@dataclass
class Shared:
    """The ports of the processes that run for the whole suite."""

    servers: dict
    proxies: dict
    # Ports of three servers of each of `THREES`.
    threes: dict
    # Ports of proxies before servers on stdio, by the server's name.
    stdio: dict
    # The sockets of the preloaded clients; without one a client is started as usual.
    preloaded: dict


def pytest_addoption(parser):
    parser.addoption("--all", action="store_true", help="run all cases, not only those of harness/pairs.py")


def pytest_xdist_auto_num_workers():
    """Several for each processor: a case waits for timers and for other processes for most of its time."""
    return WORKERS_PER_PROCESSOR * (os.cpu_count() or 1)


def pytest_configure(config):
    for mark in ("each_value", "one_case", "every_case"):
        config.addinivalue_line("markers", f"{mark}: the cases of a default run, see harness/pairs.py")
    if hasattr(config, "workerinput"):
        config.e2e = Shared(**json.loads(config.workerinput["e2e"]))
    elif not config.option.collectonly and not config.option.help:
        config.e2e_processes, config.e2e = start_all()
    if hasattr(config, "e2e"):
        stack.PRELOADED.update(config.e2e.preloaded)


def pytest_configure_node(node):
    """Passes the ports to a worker of pytest-xdist."""
    node.workerinput["e2e"] = json.dumps(vars(node.config.e2e))


def pytest_unconfigure(config):
    stack.stop_all(getattr(config, "e2e_processes", []))


def pytest_collection_modifyitems(config, items):
    # Cases with a limit of their own take the longest: they begin first, so that none runs alone at the end.
    items.sort(key=lambda item: item.get_closest_marker("timeout") is None)
    if config.option.all or pairs.names_cases(config):
        return
    kept, others = pairs.select(items)
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = kept
    if os.environ.get("PYTEST_XDIST_WORKER", "gw0") == "gw0":
        with config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
            print(f"pairs: {len(kept)} of {len(kept) + len(others)} cases; --all runs the rest", file=sys.stderr)


def start_all():
    running, servers, threes, proxies, on_stdio, preloaded = [], {}, {}, {}, {}, {}
    try:
        for name, kind in {**stack.CLIENTS, **stack.TASK_CLIENTS}.items():
            if kind.is_python and sys.platform == "linux":
                preloaded[name] = stack.start_preloaded(name)
                running.append(preloaded[name])
        for name in (*stack.SERVERS, "tasks"):
            servers[name] = stack.start_server(name)
            running.append(servers[name])
        for name in THREES:
            threes[name] = [servers[name], *(stack.start_server(name) for _ in range(2))]
            running += threes[name][1:]
        for name in stdio.SERVERS:
            on_stdio[name] = stdio.start_proxy(name, **stdio.SHARED)
            running.append(on_stdio[name])
        ports = {name: process.wait().found["port"] for name, process in servers.items()}
        for name, port in ports.items():
            proxies[name] = stack.start_proxy(port, **stack.SETTINGS.get(name, {}))
            running.append(proxies[name])
        found = {name: process.wait().found for name, process in proxies.items()}
        sockets = {name: process.wait().found["socket"] for name, process in preloaded.items()}
    except (OSError, RuntimeError) as error:
        stack.stop_all(running)
        pytest.exit(f"the suite cannot start: {error}", returncode=3)
    return running, Shared(
        servers=ports,
        threes={name: [process.wait().found["port"] for process in three] for name, three in threes.items()},
        proxies={name: places["port"] for name, places in found.items()},
        stdio={name: process.wait().found["port"] for name, process in on_stdio.items()},
        preloaded=sockets,
    )


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def key():
    """A unique name for the runs of one test, so that tests can share a server."""
    return uuid.uuid4().hex


@pytest.fixture
def clients(request):
    """The clients of a case that has one of each: all of them with `--all`, else every second one."""
    return pairs.in_turns(stack.CLIENTS, request.node)


@pytest.fixture
def servers(request):
    """The port of each server."""
    return request.config.e2e.servers


@pytest.fixture
def threes(request):
    """The ports of three servers of a kind, by its name."""
    return request.config.e2e.threes


@pytest.fixture
def proxies(request):
    """The port of the shared proxy in front of each server."""
    return request.config.e2e.proxies


@pytest.fixture
def on_stdio(request):
    """The port of the shared proxy before each server on stdio."""
    return request.config.e2e.stdio


@pytest.fixture(scope="session")
def redis(tmp_path_factory):
    """The URL of the Redis that all tests share which do not disturb it."""
    process = stack.start_redis(tmp_path_factory.mktemp("redis")).wait()
    yield process.found["url"]
    process.stop()


@pytest.fixture
def start():
    """Starts a server or a proxy for one test: `start(stack.start_proxy, port, DELIVERY__RETRY_MS=300)`."""
    running = []

    def run(what, *args, **settings):
        running.append(what(*args, **settings))
        return running[-1].wait()

    yield run
    stack.stop_all(running)
