"""Headless Chromium, driven by WebDriver over bare HTTP: the page as a user sees it."""

import contextlib
import json
import socket
import subprocess
import time
import urllib.request

START_LIMIT = 60.0
OPTIONS = {"args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1100,700"]}


class Browser:
    """One window."""

    def __init__(self, driver):
        self._driver = driver
        options = {"capabilities": {"alwaysMatch": {"goog:chromeOptions": OPTIONS}}}
        self._session = f"/session/{self._ask('POST', '/session', options)['sessionId']}"

    def open(self, url):
        self._ask("POST", f"{self._session}/url", {"url": url})

    def run(self, script, *arguments):
        """The return value of a function body run in the page."""
        return self._ask("POST", f"{self._session}/execute/sync", {"script": script, "args": list(arguments)})

    def close(self):
        self._ask("DELETE", self._session)

    def _ask(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self._driver}{path}", data, method=method)
        with urllib.request.urlopen(request, timeout=START_LIMIT) as answer:
            return json.load(answer)["value"]


@contextlib.contextmanager
def browser():
    """Starts a browser with one window."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = ["chromedriver", f"--port={port}", "--allowed-ips=127.0.0.1"]
    driver = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + START_LIMIT
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            if driver.poll() is not None or time.monotonic() > until:
                raise RuntimeError("chromedriver did not start")
            time.sleep(0.05)
        window = Browser(f"http://127.0.0.1:{port}")
        try:
            yield window
        finally:
            window.close()
    finally:
        driver.terminate()
        driver.wait()
