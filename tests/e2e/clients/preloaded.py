"""Runs a Python client many times, with one import of its SDK: `preloaded.py CLIENT SOCKET`.

The import takes one to three seconds of CPU, longer than most calls. So this process imports the modules of CLIENT once, also those
that an SDK imports when it is used, and forks for each run. A run is a connection to SOCKET, a name in Linux's abstract namespace. It carries the client's arguments,
as JSON, and the descriptors of its output and, if it has one, of its input. The reply is the id of the new process; the
connection ends with that process.
"""

import ast
import contextlib
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import sys
import traceback
from pathlib import Path

# The discard port, at which nothing listens.
NOWHERE = "http://127.0.0.1:9/mcp"

# A request is one message; the longest has an argument list of a few kilobytes.
MESSAGE_MAX = 100_000


def import_modules(client):
    """Executes the client's own imports, except that of `common`, which reads the arguments."""
    tree = ast.parse(Path(client).read_text())
    imports = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    tree.body = [node for node in imports if getattr(node, "module", None) != "common"]
    exec(compile(tree, client, "exec"), {})


def import_later_modules(client):
    """Imports what a run imports while it connects: a process that fails to connect tells the names."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        leave = os._exit

        def tell(_):
            with os.fdopen(writer, "w") as names:
                names.write("\n".join(sys.modules))
            leave(0)

        os._exit = tell
        run(client, ["--url", NOWHERE, "--tool", "none", "--linger-ms", "0"], os.open(os.devnull, os.O_RDWR))
    os.close(writer)
    with os.fdopen(reader) as names:
        later = set(names.read().split()) - set(sys.modules) - {"common"}
    os.waitpid(pid, 0)
    for name in sorted(later):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def run(client, arguments, output, *given):
    """Runs the client in this process, and ends it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    for source in given:
        os.dup2(source, 0)
        os.close(source)
    sys.argv = [client, *arguments]
    status = 1
    try:
        runpy.run_path(client, run_name="__main__")
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def main(client, name):
    import_modules(client)
    import_later_modules(client)
    gc.freeze()
    # The kernel removes ended runs.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"\0{name}")
        listener.listen(64)
        print("ready", flush=True)
        while True:
            connection, _ = listener.accept()
            message, descriptors, _, _ = socket.recv_fds(connection, MESSAGE_MAX, 2)
            # A harness that was cancelled has sent nothing.
            if message:
                pid = os.fork()
                if pid == 0:
                    listener.close()
                    run(client, json.loads(message), *descriptors)
                try:
                    connection.send(str(pid).encode())
                except OSError:
                    # The harness was cancelled after its request, and waits for no result.
                    os.kill(pid, signal.SIGKILL)
            for descriptor in descriptors:
                os.close(descriptor)
            connection.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
