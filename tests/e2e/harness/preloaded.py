"""Processes of Python clients whose SDK is imported already: the harness' side of `clients/preloaded.py`."""

import asyncio
import contextlib
import json
import os
import signal
import socket


class Preloaded:
    """A run of a client, with the part of `asyncio.subprocess.Process` that the harness uses."""

    def __init__(self, connection, pid, stdout, transport):
        self.stdout = stdout
        self.returncode = None
        self._pid = pid
        self._connection = connection
        self._transport = transport

    def kill(self):
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)

    async def wait(self):
        """Waits for the end of the process, whose exit status is not known."""
        if self.returncode is None:
            await asyncio.get_running_loop().sock_recv(self._connection, 1)
            self._connection.close()
            self._transport.close()
            self.returncode = 0
        return self.returncode


async def start(name, arguments):
    """Starts a run at the socket `name` of a preloaded client."""
    loop = asyncio.get_running_loop()
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.setblocking(False)
    await loop.sock_connect(connection, f"\0{name}")
    reader, writer = os.pipe()
    socket.send_fds(connection, [json.dumps(arguments).encode()], [writer])
    os.close(writer)
    pid = int(await loop.sock_recv(connection, 100))
    stdout = asyncio.StreamReader()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdout), os.fdopen(reader, "rb"))
    return Preloaded(connection, pid, stdout, transport)
