#!/bin/sh
# Checks deploy/nginx.conf with `nginx -t`: unchanged, with its TLS lines, and with those for several replicas. Installs nothing. Runs nginx
# on free ports of loopback, to check its logs, the headers that it passes on, and its retries.
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

# mcp-resume trusts nginx, so nginx must drop a client's own claims. A tool call must go to one server only.
python3 "$here/test/nginx.py" "$here/nginx.conf"

# nginx resolves paths of certificates against its configuration's directory.
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -subj /CN=mcp.example.com \
    -keyout "$prefix/mcp.example.com.key" -out "$prefix/mcp.example.com.crt" 2>/dev/null
sed 's/#tls //' "$here/nginx.conf" >"$prefix/tls.conf"
grep -q '^ *listen 8443 ssl' "$prefix/tls.conf" || { echo "test-nginx: nginx.conf has no TLS lines" >&2; exit 1; }
check "$prefix/tls.conf" "nginx.conf with TLS"

sed 's/#several //' "$here/nginx.conf" >"$prefix/several.conf"
[ "$(grep -c '^ *server 127' "$prefix/several.conf")" = 2 ] || { echo "test-nginx: nginx.conf has no lines for several replicas" >&2; exit 1; }
check "$prefix/several.conf" "nginx.conf for several replicas"

# Shows that the check can fail.
sed 's/proxy_buffering off/proxy_buffering of/' "$here/nginx.conf" >"$prefix/broken.conf"
if nginx -t -q -p "$prefix" -e /dev/null -c "$prefix/broken.conf" 2>/dev/null; then
    echo "test-nginx: nginx accepts a broken configuration" >&2
    exit 1
fi

# A stream's URL is a secret, and must be in no log: neither for a successful request nor for an unreachable server.
free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

# `logs NAME SED-SCRIPT`: nginx's logs of a request with a stream's URL, with the configuration changed by the script.
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
