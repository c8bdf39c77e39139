"""Processes of Python clients whose SDK is imported already: the harness' side of `clients/preloaded.py`."""

import asyncio
import contextlib
import json
import os
import signal
import socket


# The longest line of a client, in bytes.
LINE_MAX = 1 << 24


class Preloaded:
    """A run of a client, with the part of `asyncio.subprocess.Process` that the harness uses."""

    def __init__(self, connection, process, stdin, stdout, transport):
        self.stdin = stdin
        self.stdout = stdout
        self.returncode = None
        # A descriptor: the kernel may give the number of an ended process to another one.
        self._process = process
        self._connection = connection
        self._transport = transport

    def kill(self):
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._process, signal.SIGKILL)

    async def wait(self):
        """Waits for the end of the process, whose exit status is not known."""
        if self.returncode is None:
            await asyncio.get_running_loop().sock_recv(self._connection, 1)
            self._connection.close()
            self._transport.close()
            if self.stdin is not None:
                self.stdin.close()
            if self._process is not None:
                os.close(self._process)
                self._process = None
            self.returncode = 0
        return self.returncode


async def start(name, arguments, has_stdin=False):
    """Starts a run at the socket `name` of a preloaded client."""
    loop = asyncio.get_running_loop()
    with contextlib.ExitStack() as unless_started:
        connection = unless_started.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        connection.setblocking(False)
        await loop.sock_connect(connection, f"\0{name}")
        reader, writer = os.pipe()
        output = unless_started.enter_context(os.fdopen(reader, "rb"))
        given = [writer]
        stdin = None
        if has_stdin:
            source, sink = os.pipe()
            given.append(source)
            stdin = unless_started.enter_context(os.fdopen(sink, "wb", buffering=0))
        try:
            socket.send_fds(connection, [json.dumps(arguments).encode()], given)
        finally:
            for descriptor in given:
                os.close(descriptor)
        pid = int(await loop.sock_recv(connection, 100))
        stdout = asyncio.StreamReader(LINE_MAX)
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdout), output)
        unless_started.pop_all()
    return Preloaded(connection, process_of(pid), stdin, stdout, transport)


def process_of(pid):
    """Returns a descriptor of the process, or `None` if it has ended."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None
