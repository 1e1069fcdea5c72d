"""Send requests to a registry: log in, follow redirects, retry, and explain refusals.

No secret may get into an error: neither a header that was sent, nor the address of a redirect,
which holds a signature.
"""

from __future__ import annotations

import http.client
import json
import re
import socket
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from email.message import Message
from functools import cached_property
from http.client import HTTPResponse
from typing import Callable, Optional, TypeVar

import kit
from kit.base.errors import KitError
from kit.base.progress import Note
from kit.registry import credentials, redirects
from kit.registry.redirects import Refused

TIMEOUT_S = 30.0  # for a connection, and for each read
# For the answer to a request for a layer: a registry that is a proxy may fetch all of it first.
ANSWER_S = 300.0
BACK_OFF_S = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0)  # before each retry
UNREACHABLE = 3  # retries where a registry gives no answer at all: its name may be wrong
BLOBS = "blobs/"  # their path; a layer of which GBs have come is worth more patience
QUIET_S = 5.0  # shorter trouble is not noted
BUSY = (408, 425, 429)
NO_HEAD = (400, 405, 501)
PAUSE_S, LONGEST_PAUSE_S = 10.0, 60.0
NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")  # OpenSSL's names, of 1.1 and of 3
BROKEN = (OSError, http.client.HTTPException)  # a connection that was refused, cut or timed out
LARGEST = 4 << 20  # bytes of a manifest or configuration, as for Docker
ADMINISTRATORS = "tell the registry's administrators"

Answer = TypeVar("Answer")


class Unavailable(KitError):
    """The registry gives this user no such image, or cannot be reached at all.

    So the image may be one that only this machine has.
    """


class Registry:
    """A registry, for one repository, since tokens are for one."""

    def __init__(self, name: str, repository: str, note: Note) -> None:
        self.name, self.repository, self.note = name, repository, note
        host = "registry-1.docker.io" if name == "docker.io" else name
        scheme = "http" if redirects.is_loopback(f"//{host}") else "https"
        self.base = f"{scheme}://{host}/v2/{repository}"
        self.authorization = ""
        # As for Docker, a registry on this machine is not reached through a proxy.
        proxies = [urllib.request.ProxyHandler({})] if redirects.is_loopback(self.base) else []
        self.opener = urllib.request.build_opener(redirects.Redirects, *proxies)
        # Some sites' bot rules refuse urllib's own name.
        self.opener.addheaders = [("User-Agent", f"kit/{kit.__version__}")]

    @cached_property
    def found(self) -> credentials.LoginSearch:
        """The login, found only once the registry wants one: a helper may take its time."""
        return credentials.find(self.name, self.repository)

    def head(self, path: str, **headers: str) -> HTTPResponse:
        """Return the answer to HEAD, or to GET if HEAD is refused. Raise KitError for others."""

        def attempt() -> HTTPResponse:
            try:
                return self.logged_in(path, "HEAD", headers)
            except Refused as refused:
                if refused.status not in NO_HEAD:
                    raise
            return self.logged_in(path, "GET", headers)

        return self.retried(path, attempt)

    def read(self, path: str, **headers: str) -> bytes:
        """Return a document, such as a manifest."""
        return self.retried(path, lambda: _content(self.logged_in(path, "GET", headers)))

    def retried(self, path: str, attempt: Callable[[], Answer]) -> Answer:
        """Return the attempt's result. Retry after a fault, and note trouble that lasts.

        Raise KitError for a fault after the last retry, or after ANSWER_S.
        """
        start, failures = time.monotonic(), 0
        while True:
            pause_s = 0.0
            try:
                return attempt()
            except Refused as refused:
                error, pause_s = self.refusal(refused, path), _pause_s(refused)
                may_pass = refused.status >= 500 or refused.status in BUSY
            except BROKEN as broken:
                error = self.unreachable(broken, path)
                may_pass = not _is_lasting(_reason(broken))
                may_pass &= path.startswith(BLOBS) or failures < UNREACHABLE
            lost_s = time.monotonic() - start
            if not may_pass or failures == len(BACK_OFF_S) or lost_s > ANSWER_S:
                raise error from None
            wait_s = max(BACK_OFF_S[failures], pause_s)
            if lost_s + wait_s > QUIET_S:
                self.note(f"{error.problem}: trying again in {wait_s:.0f} s")
            time.sleep(wait_s)
            failures += 1

    def logged_in(self, path: str, method: str, headers: dict[str, str]) -> HTTPResponse:
        url = f"{self.base}/{path}"
        try:
            return self.send(url, method, headers, self.authorization)
        except Refused as error:
            if error.status != 401:
                raise
            # A token may also have expired: it lasts for minutes, a layer's download longer.
            self.authorization = self.authorize(error.headers)
            return self.send(url, method, headers, self.authorization)

    def send(
        self,
        url: str,
        method: str,
        headers: dict[str, str],
        authorization: str,
        content: Optional[bytes] = None,
    ) -> HTTPResponse:
        if not redirects.is_safe(url, self.base):
            raise self.error("has its logins at an address without HTTPS", ADMINISTRATORS)
        request = urllib.request.Request(url, content, method=method, headers=headers)  # noqa: S310 - checked above
        if authorization:
            request.add_unredirected_header("Authorization", authorization)
        try:
            return self.answer(request, is_layer=url.startswith(f"{self.base}/{BLOBS}"))
        except ValueError:
            problem = "gives an address or a token that is none"
            raise self.error(problem, ADMINISTRATORS) from None
        except urllib.error.HTTPError as error:
            error.close()
            # The target of a redirect must not decide where the login goes.
            is_redirected = redirects.origin(error.geturl()) != redirects.origin(url)
            status = 403 if error.code == 401 and is_redirected else error.code
            raise Refused(status, error.headers) from None

    def answer(self, request: urllib.request.Request, is_layer: bool) -> HTTPResponse:
        """Return the answer. Reading its content fails after a break of TIMEOUT_S."""
        text = (
            f"registry {self.name} has not answered for {TIMEOUT_S:.0f} s: waiting up to "
            f"{ANSWER_S:.0f} s, since a registry that is a proxy first fetches a layer itself"
        )
        word = threading.Timer(TIMEOUT_S, self.note, [text])
        word.daemon = True
        if is_layer:
            word.start()
        try:
            timeout_s = ANSWER_S if is_layer else TIMEOUT_S
            found: HTTPResponse = self.opener.open(request, timeout=timeout_s)
        finally:
            word.cancel()
        if found.fp:
            found.fp.raw._sock.settimeout(TIMEOUT_S)  # type: ignore[attr-defined]  # urllib has one timeout for both
        return found

    def authorize(self, headers: Message) -> str:
        """Return the Authorization header that the registry's 401 asks for."""
        challenges = credentials.challenges(headers.get_all("WWW-Authenticate") or [])
        if "bearer" in challenges:
            return f"Bearer {self.token(challenges['bearer'])}"
        if self.found.login and "basic" in challenges:
            return f"Basic {self.found.login}"
        raise Refused(401, headers)

    def token(self, challenge: dict[str, str]) -> str:
        query = {"scope": f"repository:{self.repository}:pull", **challenge}
        realm = query.pop("realm", "")
        if self.found.token and not self.found.login:
            # OAuth 2, as https://distribution.github.io/distribution/spec/auth/oauth/ has it
            query |= {"grant_type": "refresh_token", "refresh_token": self.found.token}
            form = urllib.parse.urlencode({"client_id": "kit", **query}).encode()
            content = _content(self.send(realm, "POST", {}, "", form))
        else:
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

    def unavailable(self, problem: str, fix: str) -> Unavailable:
        return Unavailable(f"registry {self.name} {problem}", fix)

    def refusal(self, refused: Refused, path: str) -> KitError:
        """Return the error to show for a refused request."""
        image, status = f"{self.name}/{self.repository}", refused.status
        if status == 400 and self.found.token:
            status = 401  # so OAuth 2 answers to a token that has expired: RFC 6749, 5.2
        if status == 404 and path.startswith(BLOBS):
            part = path[len(BLOBS) :]
            problem = f"has no more of {image} than its manifest: its part {part} is not there"
            return self.error(problem, "have the image pushed again")
        if status == 404:
            fix = "check the name and the tag in the registry's own catalogue"
            return self.unavailable(f"does not know the image or tag {image}", fix)
        if 300 <= status < 400 and "Location" in refused.headers:
            return self.redirected(refused)
        if status not in (401, 403, 429):
            fix = "try again later; where that does not help, ask its administrators"
            return self.error(f"answers with HTTP {status} for {image}", fix)
        login = f"docker login {self.name} ({credentials.places(self.found)})"
        if status == 429:
            fix = f"wait, or get a higher limit with a login: {login}"
            return self.error("takes no more requests from here for now", fix)
        # Docker Hub refuses a login for names that it does not know, too.
        if self.found.login or self.found.token:
            fix = f"check the name and your access to it, or log in again: {login}"
            return self.unavailable(f"refuses your login for {image}", fix)
        fix = f"check the name, or log in: {login}"
        return self.unavailable(f"wants a login for {image}, or has no such image", fix)

    def redirected(self, refused: Refused) -> KitError:
        """Return the error for a redirect that is not followed. It shows only the host."""
        try:
            url = urllib.parse.urljoin(self.base, refused.headers["Location"])
            target = urllib.parse.urlsplit(url)
            address = f"{target.scheme}://{target.hostname or ''}"
        except ValueError:
            return self.error("redirects to an address that is none", ADMINISTRATORS)
        if not redirects.is_safe(target.geturl(), self.base):
            problem = f"redirects to {address}, and kit follows only to HTTPS"
        else:
            problem = f"redirects again and again, at last to {address}"
        return self.error(problem, ADMINISTRATORS)

    def unreachable(self, broken: BaseException, path: str) -> KitError:
        """Return the error to show for a connection that failed."""
        reason = _reason(broken)
        text = type(reason).__name__  # the message may quote an address, unless it is the system's
        if isinstance(reason, OSError):
            text = reason.strerror or str(reason)
        if isinstance(reason, ssl.SSLError) and reason.reason in NO_TLS:
            return self.unavailable(
                "speaks HTTP without TLS, which kit uses only with one on this machine",
                "where Docker may use it: docker save -o FILE.tar IMAGE; here: kit build FILE.tar",
            )
        problem, fix = (
            f"cannot be reached: {text}",
            "check the name, the network, https_proxy where a proxy is needed, "
            "SSL_CERT_FILE where your site has certificates of its own",
        )
        if path.startswith(BLOBS):
            problem = f"did not send all of {path[len(BLOBS) :]}: {text}"
            if isinstance(reason, (TimeoutError, socket.timeout)):
                again = "try again in some minutes: a registry that is a proxy may still fetch it"
                fix = f"{again}; else {fix}"
        return self.unavailable(problem, fix)


def _reason(broken: BaseException) -> BaseException:
    return getattr(broken, "reason", None) or broken


def _is_lasting(reason: BaseException) -> bool:
    """Return whether a connection failed for the registry's TLS, which no retry changes."""
    is_untrusted = isinstance(reason, ssl.SSLCertVerificationError)
    return is_untrusted or (isinstance(reason, ssl.SSLError) and reason.reason in NO_TLS)


def _pause_s(refused: Refused) -> float:
    """Return how long to leave a busy registry alone: its Retry-After, if it says."""
    value = refused.headers.get("Retry-After", "")
    if re.fullmatch(r"[0-9]{1,9}", value):
        return min(float(value), LONGEST_PAUSE_S)
    return PAUSE_S if refused.status in BUSY else 0.0


def _content(answer: HTTPResponse) -> bytes:
    with answer:
        content = answer.read(LARGEST)
        if answer.length:
            raise http.client.IncompleteRead(content, answer.length)
    return content
