"""Checks the Redis of deploy/kubernetes/redis with Debian's redis-server: its configuration is valid, every login is refused before a
password is set, and then its user may run the commands of the store and no others. `shared_store.py MCP-RESUME`."""

import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import parts

FOLDER = Path(__file__).resolve().parent.parent / "kubernetes" / "redis"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def say(port, *command, user="admin"):
    run = ["redis-cli", "-p", str(port), "--no-auth-warning", "--user", user, "--pass", user, *command]
    return subprocess.run(run, capture_output=True, text=True).stdout.strip()


def start(folder, port, secret):
    users = folder / "users.acl"
    users.write_text((secret / "users.acl").read_text() + "user admin on >admin ~* &* +@all\n")
    config = folder / "redis.conf"
    config.write_text((FOLDER / "redis.conf").read_text().replace("/data", str(folder)).replace("/etc/redis", str(folder)))
    here = ["--port", str(port), "--bind", "127.0.0.1", "--logfile", folder / "log"]
    redis = subprocess.Popen(["redis-server", config, *here])
    until = time.monotonic() + parts.PATIENCE_SECS
    # The command of the readiness probe.
    while say(port, "ping", user="probe") != "PONG":
        if redis.poll() is not None or time.monotonic() > until:
            log = folder / "log"
            sys.exit(f"deploy/test/shared_store.py: Redis does not start: {log.read_text() if log.exists() else ''}")
        time.sleep(0.05)
    return redis


def login(secret):
    [url] = [line.removeprefix("url=") for line in (secret / "url.env").read_text().splitlines() if line.startswith("url=")]
    assert url.startswith("redis://mcp-resume:") and url.endswith("@mcp-redis:6379"), url
    return url, url.removeprefix("redis://mcp-resume:").removesuffix("@mcp-redis:6379")


def refused(port):
    """Checks that every login is refused with the shipped files."""
    _, password = login(FOLDER)
    for attempt in (password, "", "change-me", "probe"):
        run = ["redis-cli", "-p", str(port), "--no-auth-warning", "--user", "mcp-resume", "--pass", attempt, "get", "mcp-resume:keys"]
        said = subprocess.run(run, capture_output=True, text=True)
        assert "NOAUTH" in said.stdout or "WRONGPASS" in said.stdout + said.stderr, (attempt, said)


def check(mcp_resume, port, secret):
    url, _ = login(secret)
    environment = {
        "MCP_RESUME_UPSTREAM__URL": f"http://{parts.serve()}/mcp",
        "MCP_RESUME_STORE__KIND": "redis",
        "MCP_RESUME_STORE__URL": url.replace("mcp-redis:6379", f"127.0.0.1:{port}"),
        "MCP_RESUME_LISTEN__ADDRESS": "127.0.0.1:0",
        "MCP_RESUME_ADMIN__ADDRESS": "127.0.0.1:0",
        "MCP_RESUME_LOG__LEVEL": "warn",
    }
    with parts.Proxy([mcp_resume, "serve"], environment) as proxy:
        parts.call_and_resume(proxy.data)
        assert parts.request(proxy.admin, "GET", "/readyz") == (200, "ready\n")
        assert "mcp_resume_store_ready 1\n" in parts.request(proxy.admin, "GET", "/metrics")[1]
        assert say(port, "keys", "mcp-resume:*"), "the proxy stored no keys"
    assert say(port, "acl", "log") == "", f"commands were refused: {say(port, 'acl', 'log')}"
    assert say(port, "config", "get", "maxmemory-policy").split()[1] == "noeviction"
    assert say(port, "config", "get", "appendonly").split()[1] == "yes"
    assert "NOPERM" in say(port, "keys", "*", user="probe"), "the probe may read"
    anonymous = subprocess.run(["redis-cli", "-p", str(port), "ping"], capture_output=True, text=True).stdout
    assert "NOAUTH" in anonymous, "anonymous clients may connect"
    print("deploy: kubernetes/redis runs, and its user may do what the store does")


def with_redis(folder, secret, then):
    port = free_port()
    redis = start(folder, port, secret)
    try:
        then(port)
    finally:
        redis.terminate()
        redis.wait()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as shipped, tempfile.TemporaryDirectory() as own:
        with_redis(Path(shipped), FOLDER, refused)
        secret = Path(own) / "secret"
        secret.mkdir()
        subprocess.run([FOLDER / "make-secret.sh", secret], check=True)
        first = login(secret)
        subprocess.run([FOLDER / "make-secret.sh", secret], check=True)
        assert login(secret) != first, "two runs made the same password"
        with_redis(Path(own), secret, lambda port: check(os.path.abspath(sys.argv[1]), port, secret))
