#!/bin/sh
# Checks deploy/nginx.conf with `nginx -t`, as it stands and with its TLS lines, and those for several replicas, in force. Installs
# nothing; runs nginx on free ports of loopback, to see what it logs, what it passes on and what it sends again.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
PATH=$PATH:/usr/sbin
for tool in nginx openssl; do
    command -v "$tool" >/dev/null || { echo "test-nginx: $tool is not installed" >&2; exit 1; }
done

prefix=$(mktemp -d)
trap 'rm -rf "$prefix"' EXIT INT TERM

check() {
    nginx -t -q -p "$prefix" -e stderr -c "$1" || { echo "test-nginx: nginx refuses $2" >&2; exit 1; }
    echo "test-nginx: nginx accepts $2"
}

check "$here/nginx.conf" "nginx.conf"

# mcp-resume believes nginx: what a client writes of itself must end here. And a tool call is sent to one server only.
python3 "$here/test/nginx.py" "$here/nginx.conf"

# nginx looks for certificates where the configuration is.
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -subj /CN=mcp.example.com \
    -keyout "$prefix/mcp.example.com.key" -out "$prefix/mcp.example.com.crt" 2>/dev/null
sed 's/#tls //' "$here/nginx.conf" >"$prefix/tls.conf"
grep -q '^ *listen 8443 ssl' "$prefix/tls.conf" || { echo "test-nginx: nginx.conf has no TLS lines" >&2; exit 1; }
check "$prefix/tls.conf" "nginx.conf with TLS"

sed 's/#several //' "$here/nginx.conf" >"$prefix/several.conf"
[ "$(grep -c '^ *server 127' "$prefix/several.conf")" = 2 ] || { echo "test-nginx: nginx.conf has no lines for several replicas" >&2; exit 1; }
check "$prefix/several.conf" "nginx.conf for several replicas"

# A check that accepts everything checks nothing.
sed 's/proxy_buffering off/proxy_buffering of/' "$here/nginx.conf" >"$prefix/broken.conf"
if nginx -t -q -p "$prefix" -e /dev/null -c "$prefix/broken.conf" 2>/dev/null; then
    echo "test-nginx: nginx accepts a broken configuration" >&2
    exit 1
fi

# The URL of a stream opens it, and must be in no log: neither of a good request nor of one whose server is away.
free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

# `logs NAME SED-SCRIPT`: what nginx logs of a request with a stream's URL, with its configuration changed so.
logs() {
    port=$(free_port)
    sed "s/listen 8000/listen 127.0.0.1:$port/; s/server 127.0.0.1:8080/server 127.0.0.1:1/; s|/dev/stdout|$prefix/$1.log|; s|error_log stderr|error_log $prefix/$1.log|; $2" \
        "$here/nginx.conf" >"$prefix/$1.conf"
    nginx -p "$prefix" -e "$prefix/$1.log" -g 'daemon off;' -c "$prefix/$1.conf" &
    nginx_pid=$!
    for _ in $(seq 100); do
        curl -s -o /dev/null "http://127.0.0.1:$port/mcp?mcp-stream=opens-it" && break
        sleep 0.1
    done
    kill -QUIT "$nginx_pid"
    wait "$nginx_pid" || true
    grep -q ' 502 ' "$prefix/$1.log" || { echo "test-nginx: nginx logs no request" >&2; exit 1; }
    ! grep -q opens-it "$prefix/$1.log"
}

logs shipped "" || { echo "test-nginx: the URL of a stream is in nginx's log" >&2; exit 1; }
if logs told 's/error_log .*emerg;/error_log '"$(printf %s "$prefix/told.log" | sed 's|/|\\/|g')"' error;/'; then
    echo "test-nginx: an error log with the request line passes" >&2
    exit 1
fi
echo "test-nginx: the URL of a stream is in no log"
