#!/bin/sh
# Makes a random password, and writes it into users.acl (as a hash) and url.env: make-secret.sh [DIRECTORY], by default the script's own.
# Keep both files out of version control, or give the sidecars and Redis a Secret of your own.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
directory=${1:-$here}
password=$(openssl rand -hex 32)
hash=$(printf %s "$password" | sha256sum | cut -d ' ' -f 1)
umask 077
sed "s/^user mcp-resume [^+~]*resetkeys/user mcp-resume on resetpass #$hash resetkeys/" "$here/users.acl" >"$directory/users.acl.new"
grep -q "^user mcp-resume on resetpass #$hash resetkeys " "$directory/users.acl.new" || { echo "make-secret.sh: users.acl has no user mcp-resume" >&2; exit 1; }
mv "$directory/users.acl.new" "$directory/users.acl"
printf '# What the sidecars get. The hash of the password is in users.acl.\nurl=redis://mcp-resume:%s@mcp-redis:6379\n' "$password" >"$directory/url.env"
