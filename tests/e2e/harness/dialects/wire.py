"""Shared parts of the dialects' clients: a session, one call at a time, and a connection that may break."""

import asyncio
import copy
import json
from dataclasses import dataclass

from harness.raw import ask, open_session

# The fixed answers of the suite's clients to requests of a server.
ANSWERS = {
    "sampling/createMessage": {"role": "assistant", "model": "fixed", "content": {"type": "text", "text": "sampled"}},
    "elicitation/create": {"action": "accept", "content": {"word": "elicited"}},
    "roots/list": {"roots": [{"uri": "file:///rooted"}]},
}

CAPABILITIES = {"sampling": {}, "elicitation": {}, "roots": {}}

# The limit for one call with all its cuts.
LIMIT = 40.0


class Broken(Exception):
    """The connection ended in the middle of a message."""


class Refused(Exception):
    """A resume was answered with an error: the message, and its HTTP status."""

    def __init__(self, message, status):
        super().__init__(f"{status}: {message}")
        self.message, self.status = message, status


class Violation(Exception):
    """The other side violated the proposal."""


@dataclass(frozen=True)
class Got:
    """One message of a stream, and its event ID (None without one)."""

    id: str | None
    message: dict

    @property
    def method(self):
        return self.message.get("method")


class Client:
    """One call at a time, and its resumption. A subclass implements the messages and the resume of its dialect.

    `call` does all steps. The single steps are for tests that leave at a certain point: `begin`, `until`, `drop`, then the
    dialect's own ones, then `rest`.
    """

    # The capabilities that this dialect declares at `initialize`.
    declares = {}

    def __init__(self, port, session):
        self.port, self.session = port, session
        self.got = []
        self.body = self.answer = self.response = self.cursor = None
        self.retry_ms = 1000
        # True if requests of the server are answered as they come.
        self.answers_at_once = True

    @classmethod
    async def connect(cls, port, declares=None, revision="2025-11-25", **headers):
        """Opens a session; `declares` names other capabilities than the dialect's own."""
        capabilities = CAPABILITIES | (cls.declares if declares is None else declares)
        return cls(port, await open_session(port, revision, capabilities, **headers))

    def twin(self):
        """A second reader of the same call, with the knowledge of this one so far."""
        other = copy.copy(self)
        other.got = []
        return other

    # The received messages.

    @property
    def progress(self):
        return [got.message["params"]["progress"] for got in self.got if got.method == "notifications/progress"]

    @property
    def methods(self):
        """The methods of all messages in order; None is a response."""
        return [got.method for got in self.got]

    @property
    def text(self):
        """The text of the call's result."""
        return self.answer["result"]["content"][0]["text"]

    @property
    def done(self):
        return self.answer is not None

    # The steps of one call.

    async def call(self, body):
        """Makes the call, resumes it as often as needed, and returns its response."""
        async with asyncio.timeout(LIMIT):
            step = self.begin(body)
            while True:
                try:
                    await step
                    await self.read()
                except Broken:
                    self.drop()
                if self.done:
                    return self.answer
                step = self.reconnect()

    async def begin(self, body):
        """Sends the call and reads the head of its response."""
        self.body, self.answer, self.cursor = body, None, None
        await self.open(body=body)

    async def reconnect(self):
        """Resumes after the end of a connection, as the dialect's text requires."""
        raise NotImplementedError

    async def reconnect_by_transport(self):
        """Resumes before the first message of the dialect: by the cursor if there is one, else by the same request again."""
        await self.pause()
        if self.cursor:
            await self.open(method="GET", last_event_id=self.cursor)
        else:
            await self.open(body=self.body)

    async def pause(self):
        await asyncio.sleep(self.retry_ms / 1000)

    async def open(self, **request):
        """Sends a request that opens or resumes the call's stream."""
        try:
            self.response = await ask(self.port, **(self.session | request))
        except (asyncio.IncompleteReadError, OSError) as error:
            raise Broken from error
        if self.response.status not in (200, 204):
            raise Refused(await self.response.body(), self.response.status)

    async def read(self):
        """Reads the connection to its end."""
        while await self.next() is not None:
            pass

    async def rest(self):
        """Reads the connection to its end; returns the remaining messages."""
        before = len(self.got)
        await self.read()
        return [got.message for got in self.got[before:]]

    async def until(self, wanted):
        """Reads up to the first message that is `wanted`, and returns it."""
        while (message := await self.next()) is not None:
            if wanted(message):
                return message
        raise AssertionError(f"the stream ended before it came; got {self.methods}")

    async def until_progress(self, n):
        await self.until(lambda m: m.get("method") == "notifications/progress" and m["params"]["progress"] == n)

    async def until_asked(self):
        """Reads up to a request of the server, and returns it."""
        return await self.until(is_question)

    async def next(self):
        """The next message of the connection, or None at its end."""
        if self.response.status == 204:
            return None
        try:
            if not self.response.headers.get("content-type", "").startswith("text/event-stream"):
                return await self._json()
            while event := await self.response.event():
                self.cursor = event.id or self.cursor
                self.retry_ms = event.retry if event.retry is not None else self.retry_ms
                if event.data:
                    return await self._take(Got(event.id, json.loads(event.data)))
        except (asyncio.IncompleteReadError, OSError) as error:
            raise Broken from error
        self.response.close()
        return None

    async def _json(self):
        whole = await self.response.body()
        self.response.status = 204
        return await self._take(Got(None, json.loads(whole))) if whole else None

    async def _take(self, got):
        self.got.append(got)
        message = got.message
        if is_response(message) and message.get("id") == self.body["id"]:
            self.answer = message
        await self.handle(message)
        return message

    def drop(self):
        """Disconnects without notice."""
        if self.response is not None:
            self.response.reset()

    # Hooks for subclasses.

    async def handle(self, message):
        """Handles one message; a request of the server is answered at the endpoint, as ordinary clients do it."""
        if is_question(message) and self.answers_at_once:
            await self.post(reply(message))

    async def post(self, message):
        """Sends a notification or a client response; returns the status."""
        told = await ask(self.port, body=message, **self.session)
        await told.body()
        return told.status

    async def request(self, method, request_id, session=None, **params):
        """Sends a request beside the call's stream; returns the HTTP status and the response."""
        body = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}
        told = await ask(self.port, body=body, **(session or self.session))
        return told.status, (await told.messages())[-1]


def is_response(message):
    return "method" not in message and ("result" in message or "error" in message)


def is_question(message):
    return "id" in message and "method" in message


def reply(question):
    """The suite's fixed answer to a request of the server."""
    return {"jsonrpc": "2.0", "id": question["id"], "result": ANSWERS[question["method"]]}
