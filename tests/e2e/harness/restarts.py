"""A server that a test ends and starts again at the same address."""

import asyncio
import functools

from harness import stack


class Restarted:
    """One of the suite's servers, started with the fixture `start`."""

    def __init__(self, start, name, **env):
        self.port = stack.free_port()
        self._start = functools.partial(start, stack.start_server, name, PORT=str(self.port), **env)
        self._process = self._start()

    async def end(self):
        """Ends the server; its port refuses connections then."""
        await asyncio.to_thread(self._process.stop)

    async def begin(self):
        """Starts the server again, and waits until it listens."""
        self._process = await asyncio.to_thread(self._start)

    async def restart(self):
        await self.end()
        await self.begin()
