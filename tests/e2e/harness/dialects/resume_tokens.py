"""A client of resume tokens (#1003): a result with `nextResumeToken` is interim, and the same call continues with it."""

import asyncio
import copy

from harness.dialects.wire import LIMIT, Broken, Client, Violation


class ResumeTokens(Client):
    """`where`: the place of the token, the call's "params", or the tool's "arguments", as a model would put it."""

    def __init__(self, port, session, where="params"):
        super().__init__(port, session)
        self.where = where
        # The interim results, in order.
        self.slices = []
        self._base = None

    async def call(self, body):
        """Makes the call, and repeats it with each token, until a result has none."""
        self._base, token, n = body, None, 0
        async with asyncio.timeout(LIMIT):
            while True:
                n += 1
                await self.one(self.again(f"{body['id']}-{n}", token))
                token = self.next_token()
                if token is None:
                    return self.answer

    async def one(self, body):
        """One slice. If its connection breaks, the call is repeated, which is safe because it carries its token."""
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

    def again(self, request_id, token, base=None):
        """The call with a token, otherwise unchanged."""
        body = copy.deepcopy(base or self._base) | {"id": request_id}
        if token is not None:
            place = body["params"] if self.where == "params" else body["params"]["arguments"]
            place["resumeToken"] = token
        return body

    def next_token(self):
        """The token of the response, or None if the call has ended."""
        if "error" in self.answer:
            return None
        token = self.answer["result"].get("nextResumeToken")
        if token is None:
            return None
        if not isinstance(token, str):
            raise Violation("a resume token is a string")
        if self.answer["result"].get("isError"):
            raise Violation("an error with a resume token")
        self.slices.append(self.answer["result"])
        return token

    async def reconnect(self):
        """Repeats the call under the same id, with the cursor of the transport."""
        await self.pause()
        await self.open(body=self.body, **({"last_event_id": self.cursor} if self.cursor else {}))
