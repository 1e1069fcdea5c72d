"""Follow redirects, and decide where a request and a login may go."""

from __future__ import annotations

import urllib.parse
import urllib.request
from email.message import Message
from http.client import HTTPMessage
from typing import IO, Any

LOOPBACK = ("localhost", "127.0.0.1", "::1")


class Refused(Exception):
    """The registry answered with an error status."""

    def __init__(self, status: int, headers: Message) -> None:
        self.status, self.headers = status, headers


class Redirects(urllib.request.HTTPRedirectHandler):
    """Follow redirects as urllib does, but send the login only to the host that it is for."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> Any:
        # Python 3.9 does not know 308. Like 307, it keeps the method.
        new = super().redirect_request(req, fp, 307 if code == 308 else code, msg, headers, newurl)
        if new is None:
            return None
        new.method = req.get_method()
        # urllib sets it again if the new address is reached through the proxy, too.
        new.remove_header("Proxy-authorization")
        if origin(newurl) == origin(req.full_url):
            for key, value in req.unredirected_hdrs.items():
                new.add_unredirected_header(key, value)
        elif not is_safe(newurl, req.full_url):
            raise Refused(code, headers)
        return new

    http_error_308 = urllib.request.HTTPRedirectHandler.http_error_302


def is_safe(url: str, source: str) -> bool:
    """Return whether a request may go to `url`, which `source` named.

    Only this machine may name itself: another may not lead kit to a port of this one.
    """
    try:
        scheme = urllib.parse.urlsplit(url).scheme
        is_local = is_loopback(url) and is_loopback(source)
        return scheme == "https" or (scheme == "http" and is_local)
    except ValueError:
        return False


def is_loopback(url: str) -> bool:
    return urllib.parse.urlsplit(url).hostname in LOOPBACK


def origin(url: str) -> tuple[str, str]:
    parts = urllib.parse.urlsplit(url)
    return parts.scheme, parts.netloc
