"""Checks Dockerfile.stdio. buildah builds it from the image of a directory and a stand-in for Node's image, which has this machine's node and
npm; the server comes from npm. It runs like a container: as its user, and as process 1 of namespaces of its own. `stdio_image.py DIRECTORY`;
DIRECTORY comes from build-static.sh or lay-out.sh. Needs root."""

import contextlib
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import parts
from image import DEPLOY, DEVICES, TAG, output

NODE_TAG = "node:test"
STDIO_TAG = "mcp-stdio:test"
ADDRESS = "127.0.0.1:8080"
AUTHORITIES = "/etc/ssl/certs/ca-certificates.crt"
# As in Node's images, with the authorities of this machine for its registry.
NODE_FILE = f"""\
FROM scratch
COPY . /
ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
ENV NODE_EXTRA_CA_CERTS={AUTHORITIES}
"""
# Of a Debian image; `sleep` is for the test.
PROGRAMS = ["sh", "env", "sleep"]
# Longer than the five seconds that a server has to end.
END_SECS = 20


def build_and_run(directory):
    with tempfile.TemporaryDirectory() as folder:
        place = ["--root", f"{folder}/store", "--runroot", f"{folder}/run", "--storage-driver", "vfs"]
        output(DEPLOY / "image.sh", directory, TAG, *place)
        buildah = ["buildah", *place]
        build = [*buildah, "build", "--quiet", "--pull-never", "--isolation", "chroot", "--format", "docker"]
        node, empty = Path(folder, "node"), Path(folder, "empty")
        lay_out_node(node)
        empty.mkdir()
        Path(folder, "Dockerfile").write_text(NODE_FILE)
        output(*build, "--file", f"{folder}/Dockerfile", "--tag", NODE_TAG, node)
        bases = ["--build-arg", f"MCP_RESUME_IMAGE=localhost/{TAG}", "--build-arg", f"NODE_IMAGE=localhost/{NODE_TAG}"]
        output(*build, *bases, "--file", DEPLOY / "Dockerfile.stdio", "--tag", STDIO_TAG, empty)
        config = json.loads(output(*buildah, "inspect", "--type", "image", STDIO_TAG))["Docker"]["config"]
        container = output(*buildah, "from", "--pull-never", STDIO_TAG)
        root = Path(output(*buildah, "mount", container))
        try:
            says_what_it_should(config)
            run_inside(root, config)
        finally:
            output(*buildah, "umount", container)


def lay_out_node(root):
    """Lays out a root directory with node, npm and what they need, and the user "node"."""
    for folder in ("bin", "dev", "etc/ssl/certs", "home/node", "proc", "tmp", "usr/bin", "usr/local/bin", "usr/local/lib/node_modules"):
        (root / folder).mkdir(parents=True)
    programs = {name: shutil.which(name) for name in PROGRAMS}
    programs["node"] = output("node", "--print", "process.execPath")
    for name, file in programs.items():
        shutil.copy(file, root / "usr" / ("local/bin" if name == "node" else "bin") / name)
        for word in output("ldd", file).split():
            if word.startswith("/"):
                (root / word[1:]).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(word, root / word[1:])
    (root / "bin" / "sh").symlink_to("/usr/bin/sh")
    shutil.copytree(Path(output("npm", "root", "--global"), "npm"), root / "usr/local/lib/node_modules/npm", symlinks=True)
    (root / "usr/local/bin/npm").symlink_to("../lib/node_modules/npm/bin/npm-cli.js")
    shutil.copy(AUTHORITIES, root / AUTHORITIES[1:])
    (root / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\nnode:x:1000:1000::/home/node:/bin/sh\n")
    os.chown(root / "home" / "node", 1000, 1000)


def says_what_it_should(config):
    assert config["User"] == "1000:1000", config
    assert config["Entrypoint"] == ["mcp-resume"], config
    assert config["Healthcheck"]["Test"] == ["CMD", "mcp-resume", "health"], config
    assert not config["Volumes"], config


def run_inside(root, config):
    """Runs the image in a mount and a network namespace of its own; its process gets a namespace of PIDs besides."""
    for device in DEVICES:
        (root / "dev" / device).touch()
    arguments = json.dumps({"root": str(root), "config": config})
    subprocess.run(["unshare", "--mount", "--net", sys.executable, __file__, "--inside", arguments], check=True)


def inside(root, config):
    for device in DEVICES:
        output("mount", "--bind", f"/dev/{device}", f"{root}/dev/{device}")
    output("ip", "link", "set", "lo", "up")
    environment = {"HOME": "/home/node", "MCP_RESUME_LOG__LEVEL": "warn", **dict(entry.split("=", 1) for entry in config["Env"])}
    program = ["chroot", f"--userspec={config['User']}", root, "env", f"--chdir={config['WorkingDir']}"]
    # The first process that the shell starts is process 1. (`unshare --fork` of util-linux 2.38 loses its exit status.)
    own_pids = ["unshare", "--pid", "sh", "-c", '"$@" & wait $!', "sh"]
    own_proc = ["sh", "-c", 'mount -t proc proc "$0" && exec "$@"', f"{root}/proc"]
    with parts.Proxy([*own_pids, *own_proc, *program, *config["Entrypoint"], *config["Cmd"]], environment) as proxy:
        assert proxy.data.endswith(":8080"), "the proxy does not listen on port 8080"
        [first] = children(proxy.process.pid)
        try:
            serves(first, program, config, environment)
            ends_with_everything(first, proxy.process)
        finally:
            # The shell passes no signal on.
            with contextlib.suppress(ProcessLookupError):
                os.kill(first, signal.SIGKILL)
    print("deploy: the image with a server on stdio runs as process 1 and an unprivileged user, serves a call, and leaves no process behind")


def serves(first, program, config, environment):
    status = status_of(first)
    assert status["NSpid"].split()[-1] == "1" and set(status["Uid"].split()) == {"1000"}, status
    call()
    healthy = subprocess.run([*program, *config["Healthcheck"]["Test"][1:]], env=environment, stdout=subprocess.PIPE, text=True)
    assert healthy.stdout.strip() == "ready", healthy
    collects_orphans(first, program)


def call():
    """Opens a session, whose server is a process, and makes a call there."""
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    headers, _ = post({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})
    session = {"Mcp-Session-Id": headers["Mcp-Session-Id"], "MCP-Protocol-Version": "2025-11-25"}
    post({"jsonrpc": "2.0", "method": "notifications/initialized"}, session)
    echo = {"name": "echo", "arguments": {"message": "hello"}}
    _, answer = post({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": echo}, session)
    assert "Echo: hello" in answer, answer


def post(message, session={}):
    connection = http.client.HTTPConnection(ADDRESS, timeout=parts.PATIENCE_SECS)
    headers = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json", **session}
    connection.request("POST", "/mcp", json.dumps(message), headers)
    response = connection.getresponse()
    body = response.read().decode()
    assert response.status in (200, 202), (response.status, body)
    return response.headers, body


def collects_orphans(first, program):
    """Leaves a process to process 1, which must collect it once it ends."""
    enter = ["nsenter", "--target", str(first), "--pid"]
    subprocess.run([*enter, *program, "sh", "-c", "sleep 0.3 & exit"], check=True)
    eventually(lambda: "sleep" in names_of(children(first)), "an orphan is not left to process 1")
    eventually(lambda: "sleep" not in names_of(children(first)), "an orphan that has ended is not collected")


def ends_with_everything(first, process):
    """Ends process 1 by SIGTERM while a session is open."""
    of_image = [first, *descendants(first)]
    assert "node" in names_of(of_image), names_of(of_image)
    os.kill(first, signal.SIGTERM)
    code = process.wait(END_SECS)
    assert code == 0, f"process 1 ended with {code}"
    left = [pid for pid in of_image if names_of([pid])]
    assert not left, f"left behind: {names_of(left)}"


def children(pid):
    """The processes that any thread of this one has started, or that were left to it."""
    found = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


def descendants(pid):
    return [found for child in children(pid) for found in (child, *descendants(child))]


def status_of(pid):
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def names_of(pids):
    found = []
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found.append(status_of(pid)["Name"])
    return found


def eventually(happened, otherwise, limit=10):
    give_up = time.monotonic() + limit
    while not happened():
        assert time.monotonic() < give_up, otherwise
        time.sleep(0.02)


if __name__ == "__main__":
    if sys.argv[1] == "--inside":
        inside(**json.loads(sys.argv[2]))
    elif os.getuid() != 0:
        sys.exit("deploy/test/stdio_image.py: only root can run an image here")
    else:
        build_and_run(sys.argv[1])
