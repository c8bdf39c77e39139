"""A server on stdio whose every byte is the test's: connects stdin and stdout with a socket. Says its pid and its environment first."""

import json
import os
import socket
import sys
import threading

peer = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
peer.sendall(json.dumps({"pid": os.getpid(), "environment": dict(os.environ)}).encode() + b"\n")


def pass_on():
    while data := os.read(0, 65536):
        peer.sendall(data)
    peer.shutdown(socket.SHUT_WR)


threading.Thread(target=pass_on, daemon=True).start()
while data := peer.recv(65536):
    while data:
        data = data[os.write(1, data) :]
os._exit(3)
