"""Send requests to a registry: log in, follow redirects, retry, and explain refusals.

No secret may get into an error: neither a header that was sent, nor the address of a redirect,
which holds a signature.
"""

from __future__ import annotations

import http.client
import json
import re
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from email.message import Message
from functools import cached_property
from http.client import HTTPMessage, HTTPResponse
from typing import IO, Any, Callable, TypeVar

from kit.base.errors import KitError
from kit.base.progress import Note
from kit.registry import credentials

TIMEOUT_S = 30.0  # for a connection, and for each read
BACK_OFF_S = (0.5, 1.0, 2.0)  # before each retry
BUSY = (408, 425, 429)
MOST_PAUSES, PAUSE_S, LONGEST_PAUSE_S = 5, 10.0, 60.0
BROKEN = (OSError, http.client.HTTPException)  # a connection that was refused, cut or timed out
LARGEST = 4 << 20  # bytes of a manifest or configuration, as for Docker
LOOPBACK = ("localhost", "127.0.0.1", "::1")
ADMINISTRATORS = "tell the registry's administrators"
_PARAMETER = r'(\w+)="([^"]*)"'

Answer = TypeVar("Answer")


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
        # 308 is 307, for methods that both keep; Python 3.9 does not know it.
        new = super().redirect_request(req, fp, 307 if code == 308 else code, msg, headers, newurl)
        if new is None:
            return None
        new.method = req.get_method()
        # urllib sets it again if the new address is reached through the proxy, too.
        new.remove_header("Proxy-authorization")
        if _origin(newurl) == _origin(req.full_url):
            for key, value in req.unredirected_hdrs.items():
                new.add_unredirected_header(key, value)
        elif not _is_safe(newurl, req.full_url):
            raise Refused(code, headers)
        return new

    http_error_308 = urllib.request.HTTPRedirectHandler.http_error_302


class Registry:
    """A registry, for one repository, since tokens are for one."""

    def __init__(self, name: str, host: str, repository: str, note: Note) -> None:
        self.name, self.repository, self.note = name, repository, note
        scheme = "http" if _is_loopback(f"//{host}") else "https"
        self.base = f"{scheme}://{host}/v2/{repository}"
        self.authorization = ""
        # As for Docker, a registry on this machine is not reached through a proxy.
        proxies = [urllib.request.ProxyHandler({})] if _is_loopback(self.base) else []
        self.opener = urllib.request.build_opener(Redirects, *proxies)

    @cached_property
    def found(self) -> credentials.LoginSearch:
        """The login, found only once the registry wants one: a helper may take its time."""
        return credentials.find(self.name, self.repository)

    def ask(self, path: str, method: str = "GET", **headers: str) -> HTTPResponse:
        """Return the registry's answer, after a login if it wants one. Raise KitError otherwise."""
        return self.retried(path, lambda: self.logged_in(f"{self.base}/{path}", method, headers))

    def read(self, path: str, **headers: str) -> bytes:
        """Return a document, such as a manifest."""
        url = f"{self.base}/{path}"
        return self.retried(path, lambda: _content(self.logged_in(url, "GET", headers)))

    def retried(self, path: str, attempt: Callable[[], Answer]) -> Answer:
        """Return the attempt's result. Retry after a fault or a busy registry's pause."""
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
                reason = getattr(error, "reason", None)
                is_untrusted = isinstance(reason, ssl.SSLCertVerificationError)
                wait_s = None if is_untrusted else next(faults, None)
            if wait_s is None:
                raise final from None
            time.sleep(wait_s)

    def pause_s(self, headers: Message) -> float:
        """Return and note how long to leave a busy registry alone: its Retry-After, if it says."""
        wait_s, value = PAUSE_S, headers.get("Retry-After", "")
        if re.fullmatch(r"[0-9]{1,9}", value):
            wait_s = min(float(value), LONGEST_PAUSE_S)
        self.note(f"registry {self.name} takes no more requests for now: waiting {wait_s:.0f} s")
        return wait_s

    def logged_in(self, url: str, method: str, headers: dict[str, str]) -> HTTPResponse:
        try:
            return self.send(url, method, headers, self.authorization)
        except Refused as error:
            if error.status != 401:
                raise
            # A token may also have expired: it lasts for minutes, a layer's download longer.
            self.authorization = self.authorize(error.headers)
            return self.send(url, method, headers, self.authorization)

    def send(
        self, url: str, method: str, headers: dict[str, str], authorization: str
    ) -> HTTPResponse:
        if not _is_safe(url, self.base):
            raise self.error("has its logins at an address without HTTPS", ADMINISTRATORS)
        request = urllib.request.Request(url, method=method, headers=headers)  # noqa: S310 - checked above
        if authorization:
            request.add_unredirected_header("Authorization", authorization)
        try:
            answer: HTTPResponse = self.opener.open(request, timeout=TIMEOUT_S)
        except ValueError:
            problem = "gives an address or a token that is none"
            raise self.error(problem, ADMINISTRATORS) from None
        except urllib.error.HTTPError as error:
            error.close()
            # The target of a redirect must not decide where the login goes.
            is_redirected = _origin(error.geturl()) != _origin(url)
            status = 403 if error.code == 401 and is_redirected else error.code
            raise Refused(status, error.headers) from None
        return answer

    def authorize(self, headers: Message) -> str:
        """Return the Authorization header that the registry's 401 asks for."""
        has_basic = False
        for challenge in headers.get_all("WWW-Authenticate") or []:
            scheme, _, rest = challenge.partition(" ")
            if scheme.lower() == "bearer":
                return f"Bearer {self.token(dict(re.findall(_PARAMETER, rest)))}"
            has_basic = has_basic or scheme.lower() == "basic"
        if self.found.login and has_basic:
            return f"Basic {self.found.login}"
        raise Refused(401, headers)

    def token(self, challenge: dict[str, str]) -> str:
        query = {"scope": f"repository:{self.repository}:pull", **challenge}
        realm = query.pop("realm", "")
        url = f"{realm}{'&' if '?' in realm else '?'}{urllib.parse.urlencode(query)}"
        login = f"Basic {self.found.login}" if self.found.login else ""
        content = _content(self.send(url, "GET", {}, login))
        try:
            document = json.loads(content)
            return str(document.get("token") or document["access_token"])
        except (ValueError, KeyError, AttributeError, RecursionError):
            raise self.error("gives no token", f"try again; else {ADMINISTRATORS}") from None

    def error(self, problem: str, fix: str) -> KitError:
        return KitError(f"registry {self.name} {problem}", fix)

    def refusal(self, refused: Refused, path: str) -> KitError:
        """Return the error to show for a refused request."""
        image, status = f"{self.name}/{self.repository}", refused.status
        if status == 404 and path.startswith("blobs/"):
            part = path[len("blobs/") :]
            problem = f"has no more of {image} than its manifest: its part {part} is not there"
            return self.error(problem, "have the image pushed again")
        if status == 404:
            fix = "check the name and the tag in the registry's own catalogue"
            return self.error(f"does not know the image or tag {image}", fix)
        if 300 <= status < 400 and "Location" in refused.headers:
            return self.redirected(refused)
        if status not in (401, 403, 429):
            fix = "try again later; where that does not help, ask its administrators"
            return self.error(f"answers with HTTP {status} for {image}", fix)
        login = f"docker login {self.name} ({credentials.places(self.found)})"
        if status == 429:
            fix = f"wait, or get a higher limit with a login: {login}"
            return self.error("takes no more requests from here for now", fix)
        if self.found.login:
            fix = f"check the name and your access to it, or log in again: {login}"
            return self.error(f"refuses your login for {image}", fix)
        fix = f"check the name, or log in: {login}"
        return self.error(f"wants a login for {image}, or has no such image", fix)

    def redirected(self, refused: Refused) -> KitError:
        """Return the error for a redirect that is not followed. It shows only the host."""
        try:
            url = urllib.parse.urljoin(self.base, refused.headers["Location"])
            target = urllib.parse.urlsplit(url)
            address = f"{target.scheme}://{target.hostname or ''}"
        except ValueError:
            return self.error("redirects to an address that is none", ADMINISTRATORS)
        if not _is_safe(target.geturl(), self.base):
            problem = f"redirects to {address}, and kit follows only to HTTPS"
        else:
            problem = f"redirects again and again, at last to {address}"
        return self.error(problem, ADMINISTRATORS)

    def unreachable(self, error: BaseException) -> KitError:
        reason = getattr(error, "reason", None) or error
        text = type(reason).__name__  # the message may quote an address, unless it is the system's
        if isinstance(reason, OSError):
            text = reason.strerror or str(reason)
        return self.error(
            f"cannot be reached: {text}",
            "check the name, the network, https_proxy where a proxy is needed, "
            "SSL_CERT_FILE where your site has certificates of its own",
        )


def _content(answer: HTTPResponse) -> bytes:
    with answer:
        content = answer.read(LARGEST)
        if answer.length:
            raise http.client.IncompleteRead(content, answer.length)
    return content


def _is_safe(url: str, source: str) -> bool:
    """Return whether a request may go to `url`, which `source` named.

    Only this machine may name itself: another may not lead kit to a port of this one.
    """
    try:
        scheme = urllib.parse.urlsplit(url).scheme
        is_local = _is_loopback(url) and _is_loopback(source)
        return scheme == "https" or (scheme == "http" and is_local)
    except ValueError:
        return False


def _is_loopback(url: str) -> bool:
    return urllib.parse.urlsplit(url).hostname in LOOPBACK


def _origin(url: str) -> tuple[str, str]:
    parts = urllib.parse.urlsplit(url)
    return parts.scheme, parts.netloc
