"""A client of resumable requests (SEP-975): a policy with a token, `requests/resume` by it, `requests/getStatus`."""

import asyncio
import json

from harness.dialects.wire import Client, Refused, Violation

POLICY = "notifications/requests/resumePolicy"


class ResumableRequests(Client):
    declares = {"resumableRequests": {}}

    def __init__(self, port, session):
        super().__init__(port, session)
        self.policies = {}
        # The id of the last `requests/…` request.
        self.sent_id = None
        self._asked = 0

    @property
    def policy(self):
        """The policy of the call, once received."""
        return self.policies.get(json.dumps(self.body["id"]))

    @property
    def token(self):
        return self.policy["resumeToken"]

    async def handle(self, message):
        if message.get("method") == POLICY:
            self._keep(message["params"])
        await super().handle(message)

    def _keep(self, policy):
        if not isinstance(policy["resumeToken"], str):
            raise Violation("a resume token is a string")
        for wait in ("minWait", "maxWait"):
            if wait in policy and not isinstance(policy[wait], int | float):
                raise Violation(f"{wait} is a number of seconds")
        self.policies[json.dumps(policy["requestId"])] = policy

    async def reconnect(self):
        if self.policy is None:
            await self.reconnect_by_transport()
            return
        await asyncio.sleep(self.policy.get("minWait", 0))
        await self.resume()

    async def resume(self, confirm=True, token=None, of=None, session=None, **headers):
        """Resumes the call, at once.

        `confirm`: confirm received events by Last-Event-ID; the server may then drop them. `token`, `of`: a token or an id other
        than the call's. `session`: the headers of another session.
        """
        self.sent_id = self.body["id"] if of is None else of
        params = {"resumeToken": token or self.token}
        body = {"jsonrpc": "2.0", "id": self.sent_id, "method": "requests/resume", "params": params}
        if confirm and self.cursor:
            headers["last_event_id"] = self.cursor
        self.session = session or self.session
        await self.open(body=body, **headers)
        # A response that is no stream means that there is nothing to resume.
        if self.response.headers.get("content-type", "").startswith("application/json"):
            raise Refused(await self.response.json(), self.response.status)

    async def look(self, confirm=False, token=None, of=None, session=None):
        """Asks for the status of the call: the HTTP status, and the response. The parameters are those of `resume`."""
        self._asked += 1
        self.sent_id = f"status-{self._asked}"
        params = {"requestId": self.body["id"] if of is None else of, "resumeToken": token or self.token}
        session = session or self.session
        if confirm:
            session = session | {"last_event_id": self.cursor}
        return await self.request("requests/getStatus", self.sent_id, session=session, **params)

    async def status(self, confirm=False):
        """The status of the call: status, hasPendingMessage, hasInputRequest."""
        _, answer = await self.look(confirm=confirm)
        result = answer["result"]
        if result["requestId"] != self.body["id"]:
            raise Violation("the status of another request")
        return result["status"], result["hasPendingMessage"], result["hasInputRequest"]

    async def finished(self):
        return (await self.status())[0] != "processing"
