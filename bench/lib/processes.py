"""The processes of a benchmark: the proxies, what is beside them, and what they have used so far.

Everything here is begun for one block and ended with it. What is put on a proxy, and what its figures are, is the callers'.
"""

import contextlib
import http.client
import json
import os
import pathlib
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
# With --paths …,hyper: hyper's server and hyper-util's client with nothing on them. No lower bound: the sidecar's client is its own.
HYPER = "hyper"

NGINX_CONF = """
{user}
daemon off;
worker_processes {workers};
worker_rlimit_nofile {files};
pid nginx.pid;
error_log error.log warn;
events {{ worker_connections {files}; }}
http {{
    access_log off;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    keepalive_requests 1000000000;
    upstream mcp {{
        {servers}
        keepalive 1024;
        keepalive_requests 1000000000;
    }}
    server {{
        listen 127.0.0.1:{port} backlog=16384 reuseport{listen};
        location / {{
            proxy_pass {scheme}://mcp;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
            proxy_read_timeout 3600s;
            proxy_send_timeout 3600s;
            {verify}
        }}
    }}
}}
"""

# The certificate is of the name that a client asks for.
SERVED_WITH_TLS = " ssl; ssl_certificate {directory}/server.pem; ssl_certificate_key {directory}/server.key"
ASKED_WITH_TLS = "proxy_ssl_verify on; proxy_ssl_trusted_certificate {directory}/ca.pem; proxy_ssl_name localhost;"

HAPROXY_CONF = """
global
    nbthread {workers}
    maxconn {connections}
defaults
    mode http
    timeout connect 5s
    timeout client 1h
    timeout server 1h
    http-reuse always
    option http-no-delay
frontend clients
    bind 127.0.0.1:{port}
    default_backend mcp
backend mcp
    balance leastconn
    {servers}
"""


class Proxy:
    """A running proxy: its URL, and what its process tree has used so far."""

    def __init__(self, url, child=None):
        self.url, self.child = url, child

    def pids(self):
        if self.child is None:
            return []
        found, todo = [], [self.child.pid]
        while todo:
            pid = todo.pop()
            found.append(pid)
            for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
                todo += [int(child) for child in (task / "children").read_text().split()]
        return found

    def cpu(self):
        """Seconds on a CPU, of all threads of all processes (the scheduler's count: clock ticks are too coarse)."""
        nanos = 0
        for pid in self.pids():
            for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
                nanos += int((task / "schedstat").read_text().split()[0])
        return nanos / 1e9

    def memory(self):
        """Bytes of memory, shared pages counted once."""
        total = 0
        for pid in self.pids():
            for line in pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
        return total


@contextlib.contextmanager
def running(child):
    try:
        yield child
    finally:
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(2)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


@contextlib.contextmanager
def start(path, options, upstream, scratch):
    """The proxy of `path` before `upstream`, until the block ends."""
    if path == "direct":
        yield Proxy(upstream["url"])
    elif path == "nginx":
        with start_nginx(options, upstream, scratch) as proxy:
            yield proxy
    elif path == "mcp-resume":
        with start_mcp_resume(options, upstream, scratch) as proxy:
            yield proxy
    elif path == "haproxy":
        with start_haproxy(options, upstream, scratch) as proxy:
            yield proxy
    elif path == "pingora":
        with start_bare([options.pingora, *hosts(upstream)]) as proxy:
            yield proxy
    elif path == HYPER:
        with start_bare([options.hyper, *hosts(upstream)]) as proxy:
            yield proxy
    elif path == "balance":
        with start_balancer(options, upstream, scratch) as proxy:
            yield proxy
    else:
        with start_store(path, options, scratch) as (store, environment):
            with start_mcp_resume(options, upstream, scratch, ["--store", store], environment) as proxy:
                yield proxy


@contextlib.contextmanager
def start_nginx(options, upstream, scratch):
    tls = {}
    if "tls" in upstream:
        tls = {"scheme": "https", "verify": ASKED_WITH_TLS.format(directory=upstream["tls"])}
    with nginx(options, hosts(upstream), scratch, **tls) as (port, child):
        yield Proxy(f"http://127.0.0.1:{port}/mcp", child)


@contextlib.contextmanager
def nginx(options, servers, scratch, listen="", scheme="http", verify=""):
    """nginx before `servers`: its port, and its process."""
    prefix = pathlib.Path(tempfile.mkdtemp(dir=scratch))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    servers = " ".join(f"server {host};" for host in servers)
    user = "user root;" if os.geteuid() == 0 else ""
    conf = NGINX_CONF.format(user=user, workers=options.threads, files=options.files, servers=servers, port=port,
                             listen=listen, scheme=scheme, verify=verify)
    (prefix / "nginx.conf").write_text(conf)
    command = [options.nginx, "-p", str(prefix), "-c", "nginx.conf", "-e", "error.log"]
    with running(subprocess.Popen(command)) as child:
        wait_for_port(port, child)
        yield port, child


@contextlib.contextmanager
def start_tls(options, upstream, scratch):
    """The same server behind TLS, which nginx ends before it."""
    directory = pathlib.Path(tempfile.mkdtemp(dir=scratch))
    make_certificates(directory)
    with nginx(options, hosts(upstream), scratch, listen=SERVED_WITH_TLS.format(directory=directory)) as (port, _):
        yield upstream | {"secure": f"https://127.0.0.1:{port}/mcp", "tls": str(directory)}


def make_certificates(directory):
    """An authority, and the certificate that it gave this machine."""
    new = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    ca = [*new, "-subj", "/CN=benchmark", "-keyout", "ca.key", "-out", "ca.pem"]
    server = [*new, "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE",
              "-CA", "ca.pem", "-CAkey", "ca.key", "-keyout", "server.key", "-out", "server.pem"]
    for command in (ca, server):
        made = subprocess.run(command, cwd=directory, capture_output=True, text=True)
        if made.returncode != 0:
            sys.exit(f"failed: {' '.join(command)}: {made.stderr}")


def hosts(upstream):
    """Where the servers are that requests are spread over; one, but for --balancers."""
    return [url.split("/")[2] for url in [upstream.get("secure", upstream["url"]), *upstream.get("others", [])]]


@contextlib.contextmanager
def start_haproxy(options, upstream, scratch):
    prefix = pathlib.Path(tempfile.mkdtemp(dir=scratch))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    servers = "\n    ".join(f"server s{number} {host}" for number, host in enumerate(hosts(upstream)))
    connections = options.files // 4
    conf = HAPROXY_CONF.format(workers=options.threads, connections=connections, port=port, servers=servers)
    (prefix / "haproxy.cfg").write_text(conf)
    with running(subprocess.Popen([options.haproxy, "-db", "-f", str(prefix / "haproxy.cfg")])) as child:
        wait_for_port(port, child)
        yield Proxy(f"http://127.0.0.1:{port}/mcp", child)


@contextlib.contextmanager
def start_bare(command):
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    with running(child):
        address = child.stdout.readline().split()[-1]
        wait_for_port(int(address.split(":")[1]), child)
        yield Proxy(f"http://{address}/mcp", child)


@contextlib.contextmanager
def start_balancer(options, upstream, scratch):
    command = [options.mcp_resume, "balance", "--listen", "127.0.0.1:0", "--admin", ""]
    for host in hosts(upstream):
        command += ["--replica", f"http://{host}"]
    with listening(command, {"MCP_RESUME_BALANCE__SLOW_START_SECS": "0"}, scratch) as (url, child):
        yield Proxy(f"{url}/mcp", child)


@contextlib.contextmanager
def start_store(name, options, scratch):
    """A store of its own for one measurement: its flag, and the environment that says the rest."""
    directory = tempfile.mkdtemp(dir=options.store_dir or scratch)
    try:
        if name == "redis":
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            persistence = ["--save", "", "--appendonly", "yes", "--appendfsync", "everysec"]
            command = [options.redis_server, "--bind", "127.0.0.1", "--port", str(port), "--dir", directory, *persistence]
            with running(subprocess.Popen(command, stdout=subprocess.DEVNULL)) as child:
                wait_for_port(port, child)
                yield f"redis://127.0.0.1:{port}", {}
        else:
            yield f"disk:{directory}", {"MCP_RESUME_STORE__FSYNC": "interval" if name == "interval" else "always"}
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def start_mcp_resume(options, upstream, scratch, arguments=(), environment=None):
    command = [options.mcp_resume, "serve", "--upstream", upstream.get("secure", upstream["url"]), "--listen", "127.0.0.1:0"]
    command += [*options.proxy_arg, *arguments]
    # Whatever listens where its operators would look is not in the way, unless an argument asks for that.
    environment = {"MCP_RESUME_ADMIN__ADDRESS": "", **(environment or {})}
    if "tls" in upstream:
        environment["MCP_RESUME_UPSTREAM__TLS__CA"] = f"{upstream['tls']}/ca.pem"
    with listening(command, environment, scratch) as (url, child):
        yield Proxy(url, child)


@contextlib.contextmanager
def listening(command, environment, scratch):
    """Where it listens, and its process."""
    with open(scratch / "mcp-resume.log", "ab") as log:
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=os.environ | environment)
    with running(child):
        for line in child.stdout:
            if "listening on http" in line:
                yield line.split("listening on ")[1].split()[0], child
                return
        said = (scratch / "mcp-resume.log").read_text()[-2000:]
        sys.exit(f"{' '.join(command)} did not come up, and said:\n{said}")


def wait_for_port(port, child):
    for _ in range(500):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        if child.poll() is not None:
            sys.exit(f"{child.args[0]} ended at once")
        time.sleep(0.01)
    sys.exit(f"{child.args[0]} did not come up")


def settle(options, proxy):
    """The first requests: what a proxy sets up once is not what is measured."""
    warm_up = ["json", "--concurrency", "1", "--secs", "0.2", "--warm-up-secs", "0"]
    subprocess.run([options.bench, "load", proxy.url, *warm_up], check=True, stdout=subprocess.DEVNULL)


def tool_runs(upstream):
    """How often the upstream has begun to answer a call with events."""
    conn = http.client.HTTPConnection(upstream["url"].split("/")[2])
    with contextlib.closing(conn):
        conn.request("GET", "/runs")
        return json.load(conn.getresponse())["begun"]


def raise_file_limit(options):
    """As many descriptors as there may be; a proxy holds two for every stream."""
    wanted = 65536
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), max(hard, wanted)))
    except (ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    options.files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    most = (options.files - 1000) // 2
    for what in ("idle", "clients"):
        if getattr(options, what) > most:
            print(f"  only {most} --{what}: a process may have {options.files} descriptors", file=sys.stderr)
            setattr(options, what, most)
