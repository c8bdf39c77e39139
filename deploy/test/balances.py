"""Checks that `mcp-resume balance` accepts a configuration: `balances.py MCP-RESUME FILE`.

The balancer has no `check` command, and serves until it is stopped if its configuration is valid. The test therefore occupies its address:
the balancer fails to bind it, which comes after the configuration. A binary without the balancer fails at the role.
"""

import socket
import subprocess
import sys

PATIENCE_SECS = 60


def refusal(mcp_resume, file, environment):
    """The balancer's complaint about the configuration, or None if it accepts it."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        command = [mcp_resume, "balance", "--config", file]
        environment = environment | {"MCP_RESUME_LISTEN__ADDRESS": address}
        run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECS)
    is_taken = f"cannot listen on {address}" in run.stderr or "built without the balancer" in run.stderr
    return None if is_taken else run.stderr


if __name__ == "__main__":
    sys.exit(refusal(*sys.argv[1:], {}))
