"""A client of stream URLs (SEP-1335): a `Link` for resuming, 204 as the end of a turn, answers POSTed as an array.

Strict, as the proposal requires: it never answers at the endpoint, but collects its answers until the server ends the turn.
A client of today's transport that merely knows the `Link` is `lenient`: it answers at once, at the endpoint.
"""

import re
from urllib.parse import urljoin, urlsplit

from harness.dialects.wire import Client, Refused, Violation, is_question, reply

LINK = re.compile(r'<([^>]*)>((?:\s*;\s*[\w*-]+\s*=\s*(?:"[^"]*"|[^;,"\s]*))*)')


def stream_link(header):
    """The target of `rel="stream"` in a `Link` header, or None if there is none."""
    for target, params in LINK.findall(header or ""):
        found = dict(part.strip().partition("=")[::2] for part in params.split(";") if part.strip())
        if "stream" in found.get("rel", "").strip('"').split():
            return target
    return None


class StreamUrl(Client):
    def __init__(self, port, session, lenient=False):
        super().__init__(port, session)
        self.lenient = lenient
        self.url, self.buffer = None, []
        # The number of answers in each POST.
        self.turns = []
        self.statuses = []

    async def begin(self, body):
        self.url, self.buffer = None, []
        await super().begin(body)

    async def open(self, **request):
        await super().open(**request)
        self.statuses.append((request.get("method", "POST"), self.response.status))
        target = stream_link(self.response.headers.get("link"))
        if target is not None:
            self.url = self._resolved(target)

    def _resolved(self, target):
        """The path and query of the URL, which has to be of the server's origin."""
        origin = f"http://127.0.0.1:{self.port}"
        place = urlsplit(urljoin(f"{origin}/mcp", target))
        if f"{place.scheme}://{place.netloc}" != origin:
            raise Violation(f"a stream URL of another origin: {place.scheme}://{place.netloc}")
        return f"{place.path}?{place.query}" if place.query else place.path

    async def handle(self, message):
        if is_question(message) and not self.lenient:
            self.buffer.append(reply(message))
        else:
            await super().handle(message)

    async def reconnect(self):
        if self.url is None:
            await self.reconnect_by_transport()
            return
        await self.pause()
        await self.get()
        if self.response.status == 204:
            if not self.buffer:
                raise Violation("204, but neither the answer nor a question had come")
            await self.turn()

    async def get(self, confirm=True):
        """Resumes the stream at its URL."""
        headers = {"last_event_id": self.cursor} if confirm and self.cursor else {}
        await self.open(method="GET", path=self.url, **headers)

    async def turn(self, answers=None, confirm=True):
        """Posts the collected answers; the response is a new stream with a URL."""
        given = self.buffer if answers is None else answers
        headers = {"last_event_id": self.cursor} if confirm and self.cursor else {}
        before, self.url = self.url, None
        try:
            await self.open(body=given, path=before, **headers)
        finally:
            missing, self.url = self.url is None, self.url or before
        if missing:
            raise Violation("no stream URL on the answer to a turn")
        if not self.response.headers.get("content-type", "").startswith("text/event-stream"):
            raise Refused(await self.response.body(), self.response.status)
        self.turns.append(len(given))
        if answers is None:
            self.buffer = []
