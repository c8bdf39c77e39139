"""The live page of the admin listener, in a browser, during a call whose client is away."""

import asyncio

import pytest

from harness import stack, tasks
from harness.browser import browser
from harness.raw import ask, call, open_session
from harness.stack import eventually

pytestmark = pytest.mark.anyio

SERVER = "typescript-v1"

# The cells of the first row, the youngest stream.
ROW = """
const row = document.querySelector("#streams tr");
const text = (name) => row.querySelector(`.${name}`).textContent;
return row && {state: text("state"), client: text("client"), events: Number(text("events")), buffered: text("buffered")};
"""


async def test_a_call_is_followed_from_attached_to_detached_to_its_end(servers, start, key):
    proxy = start(stack.start_proxy, servers[SERVER]).found
    session = await open_session(proxy["port"])
    with browser() as page:

        async def row(wanted):
            """The row, once it is as wanted."""
            await eventually(lambda: (found := page.run(ROW)) is not None and wanted(found))
            return page.run(ROW)

        await asyncio.to_thread(page.open, f"http://127.0.0.1:{proxy['admin']}/")
        answer = await ask(proxy["port"], body=call(1, "long", steps=12, interval_ms=500, key=key), **session)
        first = await row(lambda row: row["state"] == "working" and row["events"] > 0)
        assert first["client"].startswith("attached")
        answer.reset()
        away = await row(lambda row: row["client"].startswith("detached"))
        assert away["state"] == "working"
        assert page.run("return document.querySelector('#detached').textContent") == "1"
        later = await row(lambda row: row["events"] > away["events"])
        assert later["client"].startswith("detached")
        done = await row(lambda row: row["state"] == "completed")
        assert done["events"] == 13
        assert page.run("return document.querySelector('#health').textContent") == "live"


async def test_a_task_is_shown_with_its_status_and_its_text(servers, start, key):
    proxy = start(stack.start_proxy, servers["tasks"], **stack.TASKS).found
    shown = """
    const rows = [...document.querySelectorAll("#streams tr")].map((row) => row.querySelector(".state"));
    return rows.map((cell) => [cell.firstChild.textContent, cell.querySelector("small")?.textContent, cell.querySelector("b") !== null]);
    """
    with browser() as page:
        await asyncio.to_thread(page.open, f"http://127.0.0.1:{proxy['admin']}/")

        async def row(status, *texts):
            """Waits for a row with this status and one of the texts, which is no markup."""
            await eventually(lambda: any([status, text, False] in page.run(shown) for text in texts))

        texts = [f"{n} of 6: <b>linking</b>" for n in range(1, 7)]
        await tasks.begin(proxy["port"], "slow_compute", seconds=6, label="<b>linking</b>", key=key)
        await row("working", *texts[:-1])
        await row("completed", texts[-1])
        await tasks.begin(proxy["port"], "confirm_delete", key=f"{key}-asks")
        await row("input required", None)
