#!/usr/bin/env bash
# Runs a slow server without tasks behind mcp-resume, and says how to try its tasks in Claude Code and in VS Code. Ctrl-c ends it.
#
# Needs what the README's quickstart needs, and Node 20. PORT (8080) and ADMIN_PORT (9464) are the ports of mcp-resume. MCP_RESUME_BIN names
# another binary than that of this tree, which is built first.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
port=${PORT:-8080} admin=${ADMIN_PORT:-9464}
url=http://127.0.0.1:$port/mcp page=http://127.0.0.1:$admin

if [ -z "${MCP_RESUME_BIN:-}" ]; then
    cargo build --release --locked --manifest-path "$root/Cargo.toml"
    MCP_RESUME_BIN=$root/target/release/mcp-resume
fi
cmp -s "$here/package-lock.json" "$here/node_modules/.made" || {
    npm ci --prefix "$here" --loglevel=error
    cp "$here/package-lock.json" "$here/node_modules/.made"
}

cat <<END
A slow server without tasks is behind mcp-resume at $url.
A call that runs for 5 s becomes a task, if its client declares tasks at 2026-07-28. At 2025-11-25 a call is a
task from its beginning, if its client asks for one.

Claude Code, 2.1.319 or later, in a terminal:

  claude mcp add --transport http slow $url
  claude
    > Call the tool build of the server slow with 60 seconds.
    > Call the tool release of the server slow.
  claude mcp remove slow

VS Code, with this .vscode/mcp.json, in the chat's agent mode:

  {"servers": {"slow": {"type": "http", "url": "$url"}}}

    > Call the tool build of the server slow with 60 seconds.
    > Call the tool release of the server slow.

Watch while a call runs:

  $page/          its row: the tool, its status, the text of its progress
  curl -s $page/metrics | grep ^mcp_resume_tasks_created_total
  below                           the log

What they mean:

  "the call goes on as a task", or   The host has tasks, of 2026-07-28 or of 2025-11-25 (VS Code).
  "a call begins as a task"          The metric is one more, and the page has a row with "seen … ago",
                                    which goes back with each poll. "call ended" follows, with this task.id as its stream.id:
    outcome="completed"             - the tool is done; the next poll has the result
    outcome="cancelled"             - the host or its user has cancelled
    "seen … ago" grows              - the host does not poll: it takes the handle for the result, or was ended
  "call ended" alone, once the      The host does not declare tasks, and had an ordinary response. This is expected of
  tool is done                      hosts without tasks.
  no line                           The host did not call the tool: does it list the server slow?

The tool release asks a question at its end. Once the host has shown it and the user has answered, the row that was
"input required" (a task) or "awaiting input" becomes "completed".

END
exec env -u MCP_RESUME_BIN MCP_RESUME_TASKS__AFTER_MS=5000 MCP_RESUME_TASKS__LEGACY_TOOLS='*' "$MCP_RESUME_BIN" serve --listen "127.0.0.1:$port" --admin "127.0.0.1:$admin" -- node "$here/server.mjs"
