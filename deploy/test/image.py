"""Checks the image. buildah builds it without network; it runs like a container: as its user, on a read-only root, in a network of its own
with a DNS server. `image.py DIRECTORY [LARGEST-BYTES]`; DIRECTORY comes from build-static.sh or lay-out.sh. Needs root."""

import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import parts

DEPLOY = Path(__file__).resolve().parent.parent
SERVER = "mcp-server.test"
TAG = "mcp-resume:test"
DEVICES = ["null", "random", "urandom"]


def output(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def build_and_run(directory, largest):
    with tempfile.TemporaryDirectory() as folder:
        # A temporary store: this machine's images are not touched, and nothing is left behind.
        place = ["--root", f"{folder}/store", "--runroot", f"{folder}/run", "--storage-driver", "vfs"]
        output(DEPLOY / "image.sh", directory, TAG, *place)
        buildah = ["buildah", *place]
        config = json.loads(output(*buildah, "inspect", "--type", "image", TAG))["Docker"]["config"]
        container = output(*buildah, "from", "--pull-never", TAG)
        root = Path(output(*buildah, "mount", container))
        try:
            says_what_it_should(config)
            holds_what_it_should(root, largest)
            run_inside(root, config)
        finally:
            output(*buildah, "umount", container)


def says_what_it_should(config):
    assert config["User"] == "65532:65532", config
    assert config["Entrypoint"] == ["/mcp-resume"], config
    assert config["Healthcheck"]["Test"] == ["CMD", "/mcp-resume", "health"], config
    assert not config["Volumes"], config


def holds_what_it_should(root, largest):
    files = {str(path.relative_to(root)): path.stat().st_size for path in root.rglob("*") if path.is_file()}
    assert files.keys() == {"mcp-resume", "etc/ssl/certs/ca-certificates.crt", "etc/nsswitch.conf"}, files
    size = sum(files.values())
    assert largest is None or size < largest, f"the image has {size:,} bytes, more than {largest:,}"
    print(f"deploy: the image has {size:,} bytes in {len(files)} files")


def run_inside(root, config):
    """Runs the image in namespaces of its own: a read-only mount, and a loopback with all ports free."""
    # The files that every engine mounts and the program needs.
    (root / "etc" / "resolv.conf").write_text("nameserver 127.0.0.1\n")
    (root / "dev").mkdir()
    for device in DEVICES:
        (root / "dev" / device).touch()
    arguments = json.dumps({"root": str(root), "config": config})
    subprocess.run(["unshare", "--mount", "--net", sys.executable, __file__, "--inside", arguments], check=True)


def inside(root, config):
    output("mount", "--bind", root, root)
    for device in DEVICES:
        output("mount", "--bind", f"/dev/{device}", f"{root}/dev/{device}")
    output("mount", "-o", "remount,bind,ro", root)
    output("ip", "link", "set", "lo", "up")
    container = ["chroot", f"--userspec={config['User']}", root]
    version = output(*container, *config["Entrypoint"], "--version")
    assert version.startswith("mcp-resume "), version

    healthy = [*container, *config["Healthcheck"]["Test"][1:]]
    assert subprocess.run(healthy, stderr=subprocess.DEVNULL).returncode == 1, "no proxy runs, and the health check succeeds"
    answer_names()
    parts.serve(3000)
    environment = {"PATH": os.environ["PATH"], "MCP_RESUME_UPSTREAM__URL": f"http://{SERVER}:3000/mcp", "MCP_RESUME_LOG__LEVEL": "warn"}
    with parts.Proxy([*container, *config["Entrypoint"], *config["Cmd"]], environment) as proxy:
        assert proxy.data.endswith(":8080"), "the proxy does not listen on port 8080"
        parts.call_and_resume("127.0.0.1:8080")
        assert output(*healthy) == "ready"
        of_process = Path(f"/proc/{proxy.process.pid}/status").read_text()
        assert "Uid:\t65532\t65532\t65532\t65532\n" in of_process, of_process
    print("deploy: the image runs as an unprivileged user on a read-only root, finds its server by name and reports that it is healthy")


def answer_names():
    """Starts a name server that knows one name."""
    resolver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    resolver.bind(("127.0.0.1", 53))

    def answer():
        while True:
            query, client = resolver.recvfrom(512)
            end = query.index(0, 12) + 5
            [kind] = struct.unpack(">H", query[end - 4 : end - 2])
            wire = b"".join(bytes([len(part)]) + part.encode() for part in SERVER.split(".")) + b"\0"
            known = query[12 : end - 4] == wire
            record = b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 60, 4) + bytes([127, 0, 0, 1]) if known and kind == 1 else b""
            head = query[:2] + struct.pack(">HHHHH", 0x8180 if known else 0x8183, 1, bool(record), 0, 0)
            resolver.sendto(head + query[12:end] + record, client)

    threading.Thread(target=answer, daemon=True).start()


if __name__ == "__main__":
    if sys.argv[1] == "--inside":
        inside(**json.loads(sys.argv[2]))
    elif os.getuid() != 0:
        sys.exit("deploy/test/image.py: only root can run an image here")
    else:
        build_and_run(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else None)
