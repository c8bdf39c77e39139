"""Whether `mcp-resume balance` takes a configuration: `balances.py MCP-RESUME FILE`.

It has no `check` of its own, and one that takes its configuration serves until it is told to end. So its address is taken already: it
fails at that, which comes after the configuration, or, in a binary without the balancer, at being one.
"""

import socket
import subprocess
import sys

PATIENCE_SECS = 60


def refusal(mcp_resume, file, environment):
    """What it has against the configuration; None where it takes it."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        command = [mcp_resume, "balance", "--config", file]
        environment = environment | {"MCP_RESUME_LISTEN__ADDRESS": address}
        run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECS)
    is_taken = f"cannot listen on {address}" in run.stderr or "built without the balancer" in run.stderr
    return None if is_taken else run.stderr


if __name__ == "__main__":
    sys.exit(refusal(*sys.argv[1:], {}))
