"""`examples/tasks/try.sh` as a person uses it: the places that it prints, stock clients as hosts, and the signs that it names."""

import asyncio
import json
import re
import urllib.request

import pytest

from harness import stack, tasks
from harness.stack import LEGACY, MODERN, eventually, metric, run_client

pytestmark = pytest.mark.anyio

TREE = stack.ROOT.parent.parent
SCRIPT = TREE / "examples" / "tasks" / "try.sh"
PAGE = TREE / "docs" / "tasks-hosts.md"
# The endpoint in that page.
WRITTEN = "http://127.0.0.1:8080/mcp"


@pytest.fixture
def tried(start):
    """The script, once its proxy listens."""

    def is_up(line, found):
        if line.startswith("admin on"):
            found["up"] = True
        return "up" in found

    def begin():
        ports = {"PORT": str(stack.free_port()), "ADMIN_PORT": str(stack.free_port())}
        env = {**ports, "MCP_RESUME_BIN": stack.proxy_binary()}
        return stack.Process([str(SCRIPT)], env, is_up)

    return start(begin)


def said(tried, pattern):
    """The last match of the pattern in what the script has said."""
    matches = [match for line in [*tried.lines] if (match := re.search(pattern, line))]
    return matches[-1] if matches else None


@pytest.mark.timeout(400)
async def test_hosts_see_what_the_script_says(tried):
    url = said(tried, r"claude mcp add --transport http slow (\S+)")[1]
    config = json.loads(said(tried, r'^ *(\{"servers": .*\})$')[1])
    assert config == {"servers": {"slow": {"type": "http", "url": url}}}
    page = said(tried, r"curl -s (\S+)/metrics")[1]
    port, admin = (int(place.split(":")[2].split("/")[0]) for place in (url, page))

    def created():
        return metric(admin, "tasks_created_total")

    # A host that declares tasks, and its user's answer to a question.
    built = await run_client("fastmcp-tasks", MODERN, url, "build", {"seconds": 8})
    assert (built.result, created()) == ("built in 8 s", 1), built
    task = said(tried, r'the call goes on as a task .*task\.id=(\S+)')[1]
    await eventually(lambda: said(tried, rf'call ended stream.id={task} .*outcome="completed"'))
    released = await run_client("fastmcp-tasks", MODERN, url, "release", {"seconds": 7})
    assert (released.result, released.asked, created()) == ("published", ["elicitation"], 2), released

    # One that does not, at the revision of VS Code.
    plain = await run_client("typescript-v1", LEGACY, url, "release", {"seconds": 7})
    assert (plain.result, plain.asked, created()) == ("published", ["elicitation"], 2), plain

    # The program in the documentation.
    program = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[1]
    assert program.count(WRITTEN) == 1 and program.count('"seconds": 60') == 2
    program = program.replace(WRITTEN, url).replace('"seconds": 60', '"seconds": 7')
    running = await asyncio.create_subprocess_exec(stack.python("fastmcp"), "-c", program, stdout=asyncio.subprocess.PIPE)
    printed, _ = await asyncio.wait_for(running.communicate(), stack.START_LIMIT)
    assert re.fullmatch(r"2026-07-28\nbuilt in 7 s\nmrt1\.\S+\nbuilt in 7 s\n", printed.decode()), printed
    assert created() == 4

    # One that has the handle and does not ask.
    await tasks.begin(port, "build", seconds=3600)

    def unasked():
        with urllib.request.urlopen(f"{page}/streams", timeout=stack.START_LIMIT) as answer:
            streams = json.load(answer)["streams"]
        states = [stream["task"]["status"] for stream in streams if stream["task"] and stream["attachedOrDetachedSecs"] > 3]
        return states.count("working") == 1

    await eventually(unasked)
