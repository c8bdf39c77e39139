"""A client of resumable streams (#899): `stream/create` and `stream/end` around a call, `stream/resume`, `stream/poll`."""

import asyncio
import json

from harness.dialects.wire import Client, Refused, Violation, is_response

CREATE = "notifications/stream/create"
END = "notifications/stream/end"


class ResumableStreams(Client):
    declares = {"streams": {}}

    def __init__(self, port, session):
        super().__init__(port, session)
        self.streams, self.ended = {}, []
        # The responses to `stream/resume` itself, by id.
        self.resumed = {}
        # The stream that no request created.
        self.standalone = None
        # The id of the last `stream/…` request.
        self.sent_id = None
        self._asked = 0

    @property
    def stream(self):
        """The stream of the call, once it was created."""
        return self.streams.get(json.dumps(self.body["id"]))

    @property
    def token(self):
        return self.stream["resumeToken"]

    @property
    def done(self):
        """True if the call has ended: with its stream's end, or with a response outside of any stream."""
        if self.stream is None:
            return self.answer is not None
        return self.answer is not None and self.stream["streamId"] in self.ended

    async def handle(self, message):
        if message.get("method") == CREATE:
            self._created(message["params"])
        elif message.get("method") == END:
            self._ended(message["params"]["streamId"])
        elif is_response(message) and str(message.get("id")).startswith("resume-"):
            self.resumed[message["id"]] = message
        await super().handle(message)

    def _created(self, stream):
        for name in ("streamId", "resumeToken"):
            if not isinstance(stream[name], str):
                raise Violation(f"{name} is a string")
        if stream.get("resumeInterval", {}).get("max") == 0:
            raise Violation("a stream that cannot be resumed was created")
        if "requestId" in stream:
            self.streams[json.dumps(stream["requestId"])] = stream
        else:
            self.standalone = stream

    def _ended(self, stream_id):
        if stream_id not in [stream["streamId"] for stream in self.streams.values()]:
            raise Violation("the end of a stream that was not created")
        self.ended.append(stream_id)

    async def reconnect(self):
        if self.stream is None:
            await self.reconnect_by_transport()
            return
        await asyncio.sleep(self.stream.get("resumeInterval", {}).get("min", 0))
        await self.resume()

    async def resume(self, confirm=True, token=None, of=None, session=None, **headers):
        """Resumes the stream, at once.

        `confirm`: confirm received events by Last-Event-ID; the server may then drop them. `token`, `of`: a token or a stream's ID
        other than the call's. `session`: the headers of another session.
        """
        self._asked += 1
        self.sent_id = f"resume-{self._asked}"
        params = self._params(token, of)
        body = {"jsonrpc": "2.0", "id": self.sent_id, "method": "stream/resume", "params": params}
        if confirm and self.cursor:
            headers["last_event_id"] = self.cursor
        self.session = session or self.session
        await self.open(body=body, **headers)
        if self.response.headers.get("content-type", "").startswith("application/json"):
            raise Refused(await self.response.json(), self.response.status)

    async def look(self, confirm=False, token=None, of=None, session=None):
        """Asks for the status of the stream: the HTTP status, and the response. The parameters are those of `resume`."""
        self._asked += 1
        self.sent_id = f"poll-{self._asked}"
        session = session or self.session
        if confirm:
            session = session | {"last_event_id": self.cursor}
        return await self.request("stream/poll", self.sent_id, session=session, **self._params(token, of))

    def _params(self, token, of):
        return {"streamId": of or self.stream["streamId"], "resumeToken": token or self.token}

    async def poll(self, confirm=False):
        """The status of the stream: status, pendingMessages, hasRequest, hasError."""
        _, answer = await self.look(confirm=confirm)
        result = answer["result"]
        if result["streamId"] != self.stream["streamId"]:
            raise Violation("the status of another stream")
        return result["status"], result["pendingMessages"], result["hasRequest"], result["hasError"]

    async def finished(self):
        return (await self.poll())[0] != "live"
