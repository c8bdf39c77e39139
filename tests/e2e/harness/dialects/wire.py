"""What the clients of all dialects share: a session, one call at a time, and a connection that may break under it."""

import asyncio
import copy
import json
from dataclasses import dataclass

from harness.raw import ask, open_session

# The fixed answers of the suite's clients to a server's questions.
ANSWERS = {
    "sampling/createMessage": {"role": "assistant", "model": "fixed", "content": {"type": "text", "text": "sampled"}},
    "elicitation/create": {"action": "accept", "content": {"word": "elicited"}},
    "roots/list": {"roots": [{"uri": "file:///rooted"}]},
}

CAPABILITIES = {"sampling": {}, "elicitation": {}, "roots": {}}

# For one call with all its cuts; a client that is not done by then never will be.
LIMIT = 40.0


class Broken(Exception):
    """The connection ended in the middle of something."""


class Refused(Exception):
    """What the client came back with was answered with an error: the message, and the status it came with."""

    def __init__(self, message, status):
        super().__init__(f"{status}: {message}")
        self.message, self.status = message, status


class Violation(Exception):
    """The other side did what the proposal forbids."""


@dataclass(frozen=True)
class Got:
    """One message of a stream, and the event ID it came under (None where it had none)."""

    id: str | None
    message: dict

    @property
    def method(self):
        return self.message.get("method")


class Client:
    """One call at a time, and how to come back for it. A subclass says what it understands and how it comes back.

    `call` goes all the way by itself. The steps are there for tests that leave at a certain point: `begin`, `until`,
    `drop`, then what the dialect offers, then `rest`.
    """

    # What this dialect declares at `initialize`.
    declares = {}

    def __init__(self, port, session):
        self.port, self.session = port, session
        self.got = []
        self.body = self.answer = self.response = self.cursor = None
        self.retry_ms = 1000
        # Whether questions of the server are answered as they come.
        self.answers_at_once = True

    @classmethod
    async def connect(cls, port, declares=None, revision="2025-11-25", **headers):
        """Opens a session; `declares` names other capabilities than the dialect's own."""
        capabilities = CAPABILITIES | (cls.declares if declares is None else declares)
        return cls(port, await open_session(port, revision, capabilities, **headers))

    def twin(self):
        """A second reader of the same call, that knows what this one knows so far."""
        other = copy.copy(self)
        other.got = []
        return other

    # What came.

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

    # The way of one call.

    async def call(self, body):
        """Makes the call, comes back for it as often as needed, and returns its response."""
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
                step = self.come_back()

    async def begin(self, body):
        """Sends the call and reads the head of what comes."""
        self.body, self.answer, self.cursor = body, None, None
        await self.open(body=body)

    async def come_back(self):
        """After the end of a connection: does what the dialect's text says."""
        raise NotImplementedError

    async def come_back_by_the_transport_alone(self):
        """Before the dialect said a word: the cursor if there was one, else the same request again."""
        await self.pause()
        if self.cursor:
            await self.open(method="GET", last_event_id=self.cursor)
        else:
            await self.open(body=self.body)

    async def pause(self):
        await asyncio.sleep(self.retry_ms / 1000)

    async def open(self, **request):
        """Sends a request that opens or goes on with the call's stream."""
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
        """Reads the connection to its end; returns the messages it still had."""
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
        """Reads up to a question of the server, and returns it."""
        return await self.until(is_question)

    async def next(self):
        """The next message of the connection, None at its end."""
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
        await self.heard(message)
        return message

    def drop(self):
        """Leaves without a word."""
        if self.response is not None:
            self.response.reset()

    # What a subclass may add.

    async def heard(self, message):
        """Understands one message; a question is answered where ordinary clients answer, at the endpoint."""
        if is_question(message) and self.answers_at_once:
            await self.tell(reply(message))

    async def tell(self, message):
        """Sends a notification or an answer; returns the status."""
        told = await ask(self.port, body=message, **self.session)
        await told.body()
        return told.status

    async def request(self, method, request_id, session=None, **params):
        """A request beside the call's stream: the status of its answer, and the answer."""
        body = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}
        told = await ask(self.port, body=body, **(session or self.session))
        return told.status, (await told.messages())[-1]


def is_response(message):
    return "method" not in message and ("result" in message or "error" in message)


def is_question(message):
    return "id" in message and "method" in message


def reply(question):
    """The suite's fixed answer to a server's question."""
    return {"jsonrpc": "2.0", "id": question["id"], "result": ANSWERS[question["method"]]}
