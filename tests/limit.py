#!/usr/bin/env python3
"""Runs one test program for Cargo: `limit.py PROGRAM ARGUMENT...`. Ends a program that hangs, and names the tests that still run.

Sets the number of tests that run at a time, by the name of the program: most tests wait for timers and processes, so that more of them run than the
machine has processors. Prints the seconds that the program took, and the seconds of processor time. See tests/rust.sh.
"""

import os
import re
import resource
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path

# Tests at a time for each processor. Programs that are not here compute, and have as many as there are processors.
THREADS = {"it": 4, "balancer": 4, "children": 4, "command_line": 2, "on_threads": 4, "mcp_resume": 2, "mcp_resume_store": 2, "mcp_resume_balancer": 2}

# Longest time in which no test ends. The longest test, a simulation, takes half a minute on two quiet processors.
QUIET_SECS = float(os.environ.get("TEST_QUIET_SECS", "300"))

ENDED = re.compile(r"^test (\S+)( - should panic)? \.\.\. (ok|FAILED|ignored)")
LONG = re.compile(r"^test (\S+)( - should panic)? has been running for")


def main(command):
    name = re.sub(r"-[0-9a-f]{16}$", "", Path(command[0]).name)
    environment = dict(os.environ)
    environment.setdefault("RUST_TEST_THREADS", str(THREADS.get(name, 1) * (os.cpu_count() or 1)))
    begun, long, last = time.monotonic(), set(), b""
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, process_group=0)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: end(process, 128 + number))
    selector = selectors.DefaultSelector()
    selector.register(process.stdout, selectors.EVENT_READ)
    while True:
        if not selector.select(QUIET_SECS):
            tests = ", ".join(sorted(long)) or "tests that began less than a minute ago"
            print(f"\ntests/limit.py: {name}: no test has ended for {QUIET_SECS:g} s. Still running: {tests}", flush=True)
            end(process, 101)
        piece = os.read(process.stdout.fileno(), 1 << 16)
        if not piece:
            break
        sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
        *lines, last = (last + piece).split(b"\n")
        for line in lines:
            text = line.decode(errors="replace")
            if found := LONG.match(text):
                long.add(found[1])
            elif found := ENDED.match(text):
                long.discard(found[1])
    status = process.wait()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = time.monotonic() - begun
    print(f"tests: {name}: {seconds:.0f} s, {used.ru_utime + used.ru_stime:.0f} s of processor time", flush=True)
    sys.exit(status if status >= 0 else 128 - status)


def end(process, status):
    """Ends the program with all that it has started in its group."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    sys.stdout.flush()
    os._exit(status)


main(sys.argv[1:])
