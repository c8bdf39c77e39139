"""The processes of a benchmark: proxies, stores and servers, and their use of CPU and memory.

Each process runs for one `with` block. Loads and figures are the callers' business.
"""

import contextlib
import http.client
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
# A bare proxy of hyper's server and hyper-util's client. No lower bound for mcp-resume, which has an HTTP/1.1 client of its own.
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

# The certificate has the name that clients verify.
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
    """A running proxy: its URL, and the resource use of its process tree."""

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
        """CPU seconds of all threads of all processes, by the scheduler's count, since clock ticks are too coarse."""
        nanos = 0
        for pid in self.pids():
            for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
                nanos += int((task / "schedstat").read_text().split()[0])
        return nanos / 1e9

    def memory(self, kind="Pss"):
        """Bytes of memory (PSS: shared pages counted once); `Pss_Anon` is heap and stacks alone."""
        total = 0
        for pid in self.pids():
            for line in pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith(f"{kind}:"):
                    total += int(line.split()[1]) * 1024
        return total


@contextlib.contextmanager
def running(child):
    """Ends `child` with the block: by SIGTERM, after two seconds by SIGKILL."""
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
    """Starts the proxy named `path` in front of `upstream`, until the block ends; other names are those of stores."""
    starts = {"nginx": start_nginx, "mcp-resume": start_mcp_resume, "haproxy": start_haproxy, "balance": start_balancer}
    with contextlib.ExitStack() as stack:
        if path == "direct":
            yield Proxy(upstream["url"])
        elif path in ("pingora", HYPER):
            binary = options.pingora if path == "pingora" else options.hyper
            yield stack.enter_context(start_bare([binary, *hosts(upstream)]))
        elif path in starts:
            yield stack.enter_context(starts[path](options, upstream, scratch))
        else:
            store, environment = stack.enter_context(start_store(path, options, scratch))
            yield stack.enter_context(start_mcp_resume(options, upstream, scratch, ["--store", store], environment))


@contextlib.contextmanager
def start_nginx(options, upstream, scratch):
    tls = {}
    if "tls" in upstream:
        tls = {"scheme": "https", "verify": ASKED_WITH_TLS.format(directory=upstream["tls"])}
    with nginx(options, hosts(upstream), scratch, **tls) as (port, child):
        yield Proxy(f"http://127.0.0.1:{port}/mcp", child)


@contextlib.contextmanager
def nginx(options, servers, scratch, listen="", scheme="http", verify=""):
    """Starts nginx in front of `servers`: its port, and its process."""
    prefix = pathlib.Path(tempfile.mkdtemp(dir=scratch))
    port = free_port()
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
    """Puts an nginx that terminates TLS in front of `upstream`."""
    directory = pathlib.Path(tempfile.mkdtemp(dir=scratch))
    make_certificates(directory)
    with nginx(options, hosts(upstream), scratch, listen=SERVED_WITH_TLS.format(directory=directory)) as (port, _):
        yield upstream | {"secure": f"https://127.0.0.1:{port}/mcp", "tls": str(directory)}


def make_certificates(directory):
    """Writes an authority, and a certificate of this machine signed by it."""
    new = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    ca = [*new, "-subj", "/CN=benchmark", "-keyout", "ca.key", "-out", "ca.pem"]
    server = [*new, "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE",
              "-CA", "ca.pem", "-CAkey", "ca.key", "-keyout", "server.key", "-out", "server.pem"]
    for command in (ca, server):
        made = subprocess.run(command, cwd=directory, capture_output=True, text=True)
        if made.returncode != 0:
            sys.exit(f"failed: {' '.join(command)}: {made.stderr}")


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def hosts(upstream):
    """Host and port of each server behind the proxy; several only for balancers."""
    return [url.split("/")[2] for url in [upstream.get("secure", upstream["url"]), *upstream.get("others", [])]]


@contextlib.contextmanager
def start_haproxy(options, upstream, scratch):
    prefix = pathlib.Path(tempfile.mkdtemp(dir=scratch))
    port = free_port()
    servers = "\n    ".join(f"server s{number} {host}" for number, host in enumerate(hosts(upstream)))
    connections = options.files // 4
    conf = HAPROXY_CONF.format(workers=options.threads, connections=connections, port=port, servers=servers)
    (prefix / "haproxy.cfg").write_text(conf)
    with running(subprocess.Popen([options.haproxy, "-db", "-f", str(prefix / "haproxy.cfg")])) as child:
        wait_for_port(port, child)
        yield Proxy(f"http://127.0.0.1:{port}/mcp", child)


@contextlib.contextmanager
def start_bare(command):
    """Starts a proxy of this benchmark (hyper, Pingora), which prints its address."""
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
    """Starts an empty store for one measurement: the value of --store, and the environment with its other settings."""
    directory = tempfile.mkdtemp(dir=options.store_dir or scratch)
    try:
        if name == "redis":
            port = free_port()
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
    # Without an admin listener, whose default port may be taken, unless an argument asks for one.
    environment = {"MCP_RESUME_ADMIN__ADDRESS": "", **(environment or {})}
    if "tls" in upstream:
        environment["MCP_RESUME_UPSTREAM__TLS__CA"] = f"{upstream['tls']}/ca.pem"
    with listening(command, environment, scratch) as (url, child):
        yield Proxy(url, child)


@contextlib.contextmanager
def start_observed(options, upstream, scratch, environment=None):
    """Starts mcp-resume with its defaults and an admin listener: the proxy, and the listener's address."""
    command = [options.mcp_resume, "serve", "--upstream", upstream["url"], "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
    with listening(command, environment or {}, scratch) as (url, child):
        yield Proxy(url, child), child.stdout.readline().split("admin on http://")[1].strip()


def metrics(admin):
    """The metrics of the mcp-resume with that admin listener, summed over labels."""
    connection = http.client.HTTPConnection(admin, timeout=30)
    with contextlib.closing(connection):
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    found = {}
    for line in text.splitlines():
        if line.startswith("mcp_resume_"):
            name, value = line.removeprefix("mcp_resume_").rsplit(" ", 1)
            name = name.split("{")[0]
            found[name] = found.get(name, 0) + int(float(value))
    return found


@contextlib.contextmanager
def listening(command, environment, scratch):
    """Starts an mcp-resume: the URL of its listener, and its process."""
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
    """Sends the first requests, so that one-time set-up is not measured."""
    warm_up = ["json", "--concurrency", "1", "--secs", "0.2", "--warm-up-secs", "0"]
    subprocess.run([options.bench, "load", proxy.url, *warm_up], check=True, stdout=subprocess.DEVNULL)


def raise_file_limit(options):
    """Raises the limit of descriptors as far as possible, and caps --idle and --clients by it: a proxy holds two for each stream."""
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
            print(f"  only {most} --{what}: the limit of descriptors is {options.files}", file=sys.stderr)
            setattr(options, what, most)
