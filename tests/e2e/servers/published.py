"""A published program, unchanged: `published.py MODULE [ARGUMENTS]`. The first port that it opens is printed. The word PORT among the
arguments stands for PORT (0 or unset: any)."""

import json
import os
import runpy
import socket
import sys

listen = socket.socket.listen


def listen_and_say(self, *backlog):
    socket.socket.listen = listen
    listen(self, *backlog)
    print(json.dumps({"port": self.getsockname()[1]}), flush=True)


socket.socket.listen = listen_and_say
module, *arguments = sys.argv[1:]
port = os.environ.get("PORT", "0")
sys.argv = [module, *(port if word == "PORT" else word for word in arguments)]
runpy.run_module(module, run_name="__main__", alter_sys=True)
