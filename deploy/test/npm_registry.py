"""A registry of npm that has the packages of a release alone: `npm_registry.py DIRECTORY PORT-FILE`. Serves until it is ended."""

import base64
import hashlib
import json
import sys
import tarfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def main(directory, port_file):
    files = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            content = files.get(self.path)
            self.send_response(404 if content is None else 200)
            self.end_headers()
            self.wfile.write(content or b"{}")

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    here = f"http://127.0.0.1:{server.server_port}"
    for file in Path(directory).glob("*.tgz"):
        content = file.read_bytes()
        with tarfile.open(file) as archive:
            package = json.load(archive.extractfile("package/package.json"))
        name, version = package["name"], package["version"]
        integrity = "sha512-" + base64.b64encode(hashlib.sha512(content).digest()).decode()
        package["dist"] = {"tarball": f"{here}/files/{file.name}", "integrity": integrity}
        files[f"/{name}"] = json.dumps({"name": name, "dist-tags": {"latest": version}, "versions": {version: package}}).encode()
        files[f"/files/{file.name}"] = content
    Path(port_file).write_text(str(server.server_port))
    server.serve_forever()


main(*sys.argv[1:])
