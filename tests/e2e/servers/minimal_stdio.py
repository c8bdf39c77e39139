"""A program on stdio without an SDK, which starts at once. It never answers a method that it does not know, `server/discover` among them."""

import json
import sys

SERVER = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "minimal", "version": "1"}}
RESULTS = {
    "initialize": SERVER,
    "ping": {},
    "tools/list": {"tools": [{"name": "quick", "inputSchema": {"type": "object"}}]},
    "tools/call": {"content": [{"type": "text", "text": "quick"}]},
}

for line in sys.stdin:
    message = json.loads(line)
    if "id" in message and message.get("method") in RESULTS:
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": RESULTS[message["method"]]}), flush=True)
