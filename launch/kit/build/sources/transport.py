"""Requests to a registry: logins, redirects, retries, and what its refusals mean.

Nothing that is secret may get into an error: neither what was sent, nor the address of a redirect, which
holds a signature.
"""

from __future__ import annotations

import http.client
import json
import re
import ssl
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from email.message import Message
from functools import cached_property
from http.client import HTTPMessage, HTTPResponse
from typing import IO, Any, Callable, Optional, TypeVar

from kit.build.sources import credentials
from kit.errors import KitError

TIMEOUT_S = 30.0  # for a connection, and for each read
BACK_OFF_S = (0.5, 1.0, 2.0)  # before each retry
BUSY = (408, 425, 429)
MOST_PAUSES, PAUSE_S, LONGEST_PAUSE_S = 5, 10.0, 60.0
BROKEN = (OSError, http.client.HTTPException)  # a connection that was refused, cut or timed out
LARGEST = 4 << 20  # bytes of a manifest or configuration, as for Docker
LOOPBACK = ("localhost", "127.0.0.1", "::1")


Answer = TypeVar("Answer")


class Refused(Exception):
    """An answer that no retry makes better."""

    def __init__(self, status: int, headers: Message) -> None:
        self.status, self.headers = status, headers


class Redirects(urllib.request.HTTPRedirectHandler):
    """Follows as urllib does, but for the login: it stays with the host that it is for."""

    def redirect_request(self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str) -> Any:
        # 308 is 307, for methods that both keep; Python 3.9 does not know it.
        new = super().redirect_request(req, fp, 307 if code == 308 else code, msg, headers, newurl)
        if new is None:
            return None
        new.method = req.get_method()
        if _origin(newurl) == _origin(req.full_url):
            for key, value in req.unredirected_hdrs.items():
                new.add_unredirected_header(key, value)
        elif not _is_safe(newurl):
            raise Refused(code, headers)
        return new

    http_error_308 = urllib.request.HTTPRedirectHandler.http_error_302


class Registry:
    """One registry, for one repository: tokens are for that."""

    def __init__(self, name: str, host: str, repository: str) -> None:
        self.name, self.repository = name, repository
        self.base = f"{_scheme(host)}://{host}/v2/{repository}"
        self.authorization = ""
        # As Docker does: what runs on this machine is not reached through a proxy.
        proxies = [urllib.request.ProxyHandler({})] if _is_loopback(self.base) else []
        self.opener = urllib.request.build_opener(Redirects, *proxies)

    @cached_property
    def found(self) -> credentials.Found:
        """Looked for when the registry wants a login: a helper may take its time."""
        return credentials.find(self.name, self.repository)

    @property
    def login(self) -> Optional[str]:
        return self.found.login

    def ask(self, path: str, method: str = "GET", **headers: str) -> HTTPResponse:
        """The registry's answer, after a login where it wants one. KitErrors for everything else."""
        return self.retried(path, lambda: self.logged_in(f"{self.base}/{path}", method, headers))

    def read(self, path: str, **headers: str) -> bytes:
        """A document, such as a manifest."""
        return self.retried(path, lambda: _content(self.logged_in(f"{self.base}/{path}", "GET", headers)))

    def retried(self, path: str, attempt: Callable[[], Answer]) -> Answer:
        """What the attempt gives: made again after a fault, and by a registry that takes no more requests when it will take them."""
        faults, pauses = iter(BACK_OFF_S), iter(range(MOST_PAUSES))
        while True:
            try:
                return attempt()
            except Refused as error:
                final = self.refusal(error, path)
                if error.status in BUSY:
                    wait_s = None if next(pauses, None) is None else self.pause_s(error.headers)
                else:
                    wait_s = next(faults, None) if error.status >= 500 else None
            except BROKEN as error:
                final = self.unreachable(error)
                is_untrusted = isinstance(getattr(error, "reason", None), ssl.SSLCertVerificationError)
                wait_s = None if is_untrusted else next(faults, None)
            if wait_s is None:
                raise final from None
            time.sleep(wait_s)

    def pause_s(self, headers: Message) -> float:
        """How long a busy registry asks to be left alone: Retry-After, in seconds."""
        asked = headers.get("Retry-After", "")
        wait_s = min(float(asked), LONGEST_PAUSE_S) if re.fullmatch(r"[0-9]{1,9}", asked) else PAUSE_S
        print(f"kit: registry {self.name} takes no more requests for now: waiting {wait_s:.0f} s", file=sys.stderr, flush=True)
        return wait_s

    def logged_in(self, url: str, method: str, headers: dict[str, str]) -> HTTPResponse:
        try:
            return self.send(url, method, headers, self.authorization)
        except Refused as error:
            if error.status != 401:
                raise
            # A token may also have run out: they last for minutes, a layer's download longer.
            self.authorization = self.authorize(error.headers)
            return self.send(url, method, headers, self.authorization)

    def send(self, url: str, method: str, headers: dict[str, str], authorization: str) -> HTTPResponse:
        if not _is_safe(url):
            raise KitError(f"registry {self.name} has its logins at an address without HTTPS", "tell the registry's administrators")
        request = urllib.request.Request(url, method=method, headers=headers)  # noqa: S310 - checked above
        if authorization:
            request.add_unredirected_header("Authorization", authorization)
        try:
            answer: HTTPResponse = self.opener.open(request, timeout=TIMEOUT_S)
        except ValueError:
            raise KitError(f"registry {self.name} gives an address or a token that is none", "tell the registry's administrators") from None
        except urllib.error.HTTPError as error:
            error.close()
            # Whom a redirect led to has no say in where the login goes.
            status = 403 if error.code == 401 and _origin(error.geturl()) != _origin(url) else error.code
            raise Refused(status, error.headers) from None
        return answer

    def authorize(self, headers: Message) -> str:
        """What to send, by what the registry's 401 asks for."""
        challenges = [challenge.partition(" ") for challenge in headers.get_all("WWW-Authenticate") or []]
        for scheme, _, rest in challenges:
            if scheme.lower() == "bearer":
                challenge = dict(re.findall(r'(\w+)="([^"]*)"', rest))
                return f"Bearer {self.token(challenge)}"
        if self.login and any(scheme.lower() == "basic" for scheme, _, _ in challenges):
            return f"Basic {self.login}"
        raise Refused(401, headers)

    def token(self, challenge: dict[str, str]) -> str:
        query = {"scope": f"repository:{self.repository}:pull", **challenge}
        realm = query.pop("realm", "")
        url = f"{realm}{'&' if '?' in realm else '?'}{urllib.parse.urlencode(query)}"
        content = _content(self.send(url, "GET", {}, f"Basic {self.login}" if self.login else ""))
        try:
            given = json.loads(content)
            return str(given.get("token") or given["access_token"])
        except (ValueError, KeyError, AttributeError, RecursionError):
            raise KitError(f"registry {self.name} gives no token", "try again; else tell the registry's administrators") from None

    def refusal(self, error: Refused, path: str) -> KitError:
        image, status = f"{self.name}/{self.repository}", error.status
        if status == 404 and path.startswith("blobs/"):
            part = path[len("blobs/") :]
            return KitError(f"registry {self.name} has no more of {image} than its manifest: its part {part} is not there", "have the image pushed again")
        if status == 404:
            return KitError(f"registry {self.name} does not know the image or tag {image}", "check the name and the tag in the registry's own catalogue")
        if 300 <= status < 400 and "Location" in error.headers:
            return self.redirected(error)
        if status not in (401, 403, 429):
            return KitError(f"registry {self.name} answers with HTTP {status} for {image}", "try again later; where that does not help, ask its administrators")
        login = f"docker login {self.name} ({credentials.places(self.found)})"
        if status in (401, 403) and self.login:
            return KitError(f"registry {self.name} refuses your login for {image}", f"check the name and your access to it, or log in again: {login}")
        if status in (401, 403):
            return KitError(f"registry {self.name} wants a login for {image}, or has no such image", f"check the name, or log in: {login}")
        return KitError(f"registry {self.name} takes no more requests from here for now", f"wait, or get a higher limit with a login: {login}")

    def redirected(self, error: Refused) -> KitError:
        """What to say of a redirect that is not followed: no more of its address than the host."""
        fix = "tell the registry's administrators"
        try:
            target = urllib.parse.urlsplit(urllib.parse.urljoin(self.base, error.headers["Location"]))
            address = f"{target.scheme}://{target.hostname or ''}"
        except ValueError:
            return KitError(f"registry {self.name} redirects to an address that is none", fix)
        if not _is_safe(target.geturl()):
            return KitError(f"registry {self.name} redirects to {address}, and kit follows to HTTPS alone", fix)
        return KitError(f"registry {self.name} redirects again and again, at last to {address}", fix)

    def unreachable(self, error: BaseException) -> KitError:
        reason = getattr(error, "reason", None) or error
        # Other errors than the system's may quote an address.
        said = (reason.strerror or str(reason)) if isinstance(reason, OSError) else type(reason).__name__
        fix = "check the name, the network, https_proxy where a proxy is needed, SSL_CERT_FILE where your site has certificates of its own"
        return KitError(f"registry {self.name} cannot be reached: {said}", fix)


def _content(answer: HTTPResponse) -> bytes:
    with answer:
        content = answer.read(LARGEST)
        if answer.length:
            raise http.client.IncompleteRead(content, answer.length)
    return content


def _scheme(host: str) -> str:
    return "http" if _is_loopback(f"//{host}") else "https"


def _is_safe(url: str) -> bool:
    try:
        scheme = urllib.parse.urlsplit(url).scheme
        return scheme == "https" or (scheme == "http" and _is_loopback(url))
    except ValueError:
        return False


def _is_loopback(url: str) -> bool:
    return urllib.parse.urlsplit(url).hostname in LOOPBACK


def _origin(url: str) -> tuple[str, str]:
    parts = urllib.parse.urlsplit(url)
    return parts.scheme, parts.netloc
