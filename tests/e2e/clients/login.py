"""Sign-in of the Python clients of the suite: the SDK's own OAuth, with a browser that follows each redirect at once."""

import asyncio
import ssl
import urllib.request
from http.cookiejar import CookieJar
from urllib.parse import parse_qs, urlsplit

# Nothing listens there: the browser reads the address to which it is sent.
CALLBACK = "http://127.0.0.1:9/callback"


class Arrived(Exception):
    """The redirects have led to the callback."""


class UntilCallback(urllib.request.HTTPRedirectHandler):
    def __init__(self, callback):
        self._callback = callback

    def redirect_request(self, request, response, code, message, headers, url):
        if url.startswith(self._callback):
            raise Arrived(url)
        return super().redirect_request(request, response, code, message, headers, url)


def browse(url):
    """Follows the redirects from `url` with the cookies that they set; returns the parameters of the callback."""
    until = UntilCallback(parameters(url)["redirect_uri"])
    https = urllib.request.HTTPSHandler(context=ssl.create_default_context())
    cookies = urllib.request.HTTPCookieProcessor(CookieJar())
    opener = urllib.request.build_opener(until, https, cookies, urllib.request.ProxyHandler({}))
    try:
        with opener.open(url) as page:
            raise RuntimeError(f"{url} ended at {page.url}")
    except Arrived as arrived:
        return parameters(str(arrived))


def parameters(url):
    return {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}


class Browser:
    """The handlers that the SDKs ask for; `answer(parameters)` makes of the callback's parameters what the SDK wants."""

    def __init__(self, answer):
        self._answer = answer
        self._parameters = {}

    async def redirect(self, url):
        self._parameters = await asyncio.to_thread(browse, url)

    async def callback(self):
        return self._answer(self._parameters)


class Storage:
    """Keeps tokens and client in memory."""

    def __init__(self):
        self._tokens = self._client = None

    async def get_tokens(self):
        return self._tokens

    async def set_tokens(self, tokens):
        self._tokens = tokens

    async def get_client_info(self):
        return self._client

    async def set_client_info(self, client):
        self._client = client
