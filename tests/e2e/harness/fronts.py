"""nginx and haproxy before the proxy or behind it, and a certificate that clients trust."""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from harness.stack import ROOT, Process, free_port

CONFIGURATION = ROOT.parent.parent / "deploy/nginx.conf"
# Debian has servers where a user's PATH does not lead.
SERVER_PROGRAMS = "/usr/sbin"


@dataclass(frozen=True)
class Certificate:
    """A certificate for 127.0.0.1 that signs itself."""

    file: Path
    key: Path

    @property
    def trusted(self):
        """The variables with which clients trust it."""
        return {"NODE_EXTRA_CA_CERTS": str(self.file), "SSL_CERT_FILE": str(self.file)}


def make_certificate(folder):
    certificate = Certificate(folder / "tls.crt", folder / "tls.key")
    kind = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "1"]
    name = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-out", str(certificate.file), "-keyout", str(certificate.key)]
    subprocess.run(["openssl", "req", *kind, *name, *files], check=True, capture_output=True)
    return certificate


def program(name):
    """The path of a server that the tests need."""
    found = shutil.which(name) or shutil.which(name, path=SERVER_PROGRAMS)
    if not found:
        raise RuntimeError(f"{name} is not installed: tests/setup.sh gets it")
    return found


def start_nginx(folder, port, certificate, listen):
    """Starts the documented nginx with TLS at `listen`, in front of 127.0.0.1:`port`; `folder` is its own."""
    folder.mkdir()
    text = CONFIGURATION.read_text()
    for before, after in {
        r"#tls ": "",
        r"listen 8000 .*": "",
        r"listen 8443 ssl": f"listen 127.0.0.1:{listen} ssl",
        r"mcp\.example\.com\.crt": str(certificate.file),
        r"mcp\.example\.com\.key": str(certificate.key),
        r"server 127\.0\.0\.1:8080": f"server 127.0.0.1:{port}",
        r"/dev/stdout": "/dev/null",
        r"worker_processes auto": "worker_processes 1",
        # On this level nginx says that a worker has started.
        r"^error_log stderr warn": "error_log stderr notice",
    }.items():
        text, replaced = re.subn(before, after, text, flags=re.MULTILINE)
        assert replaced, f"deploy/nginx.conf has no {before}"
    return run_nginx(folder, text, listen)


def run_nginx(folder, text, listen):
    """Runs nginx with this configuration, which has it listen at `listen` and say on stderr that a worker has started."""
    (folder / "nginx.conf").write_text(text)

    def ready(line, found):
        if "start worker process " in line:
            found["port"] = listen
        return "port" in found

    places = ["-p", str(folder), "-e", "stderr", "-c", str(folder / "nginx.conf")]
    return Process([program("nginx"), *places, "-g", "daemon off;"], {}, ready)


# A gateway before a server. A status that is the name of a file in its folder is the answer to every new request, as during a deploy.
GATEWAY = """
{user}
pid nginx.pid;
error_log stderr notice;
worker_processes 1;
events {{}}
http {{
    access_log off;
    client_body_temp_path client_body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    server {{
        listen 127.0.0.1:{listen};
        error_log stderr emerg;
        location / {{
            if (-f {folder}/503) {{ return 503; }}
            if (-f {folder}/504) {{ return 504; }}
            proxy_pass http://127.0.0.1:{port};
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
            proxy_read_timeout 1h;
        }}
    }}
}}
"""


def start_gateway(folder, port):
    """Starts an nginx before the server at 127.0.0.1:`port`; `folder` is its own."""
    folder.mkdir()
    listen = free_port()
    # Its workers read the folder of a test, which is root's alone.
    user = "user root;" if os.getuid() == 0 else ""
    return run_nginx(folder, GATEWAY.format(folder=folder, listen=listen, port=port, user=user), listen)


STICKY = """
defaults
    mode http
    timeout connect 2s
    timeout client 1h
    timeout server 1h
frontend all
    bind 127.0.0.1:{listen}
    default_backend servers
backend servers
    balance roundrobin
    option redispatch
    cookie SERVER insert indirect nocache
"""


def start_sticky(folder, ports):
    """Starts a haproxy before these servers, which sends those who bring its cookie `SERVER` to the same one again."""
    listen = free_port()
    servers = [f"    server s{port} 127.0.0.1:{port} cookie s{port}\n" for port in ports]
    (folder / "haproxy.cfg").write_text(STICKY.format(listen=listen) + "".join(servers))

    def ready(line, found):
        if "Loading success" in line:
            found["port"] = listen
        return "port" in found

    # With a master process, which says so when it listens, in the foreground.
    return Process([program("haproxy"), "-W", "-db", "-f", str(folder / "haproxy.cfg")], {}, ready)
