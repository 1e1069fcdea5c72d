"""Reads manifests and blobs of images from their registries.

The protocol: https://github.com/opencontainers/distribution-spec; tokens:
https://distribution.github.io/distribution/spec/auth/token
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import platform
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any, NamedTuple, Optional

from kit.errors import KitError, UsageError

MANIFESTS = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
TIMEOUT_S, TRIES, PAUSE_S = 20, 3, 1.0
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


class Reference(NamedTuple):
    registry: str
    repository: str
    tag: str  # or sha256:...

    @property
    def url(self) -> str:
        """Plain HTTP on this machine alone, as Docker has it."""
        host = "registry-1.docker.io" if self.registry == "docker.io" else self.registry
        scheme = "http" if re.sub(r":\d+$", "", host) in LOOPBACK else "https"
        return f"{scheme}://{host}/v2/{self.repository}"


def parse(reference: str) -> Reference:
    """As Docker reads it: NAME[:TAG][@DIGEST], after a first part with a dot or a colon, or localhost, as the registry."""
    name, _, digest = reference.partition("@")
    first, slash, rest = name.partition("/")
    registry, path = (first, rest) if slash and (set(".:") & set(first) or first == "localhost") else ("docker.io", name)
    path, _, tag = path.partition(":")
    if registry == "docker.io" and "/" not in path:
        path = f"library/{path}"
    if not re.fullmatch(r"[a-z0-9]+(?:[._/-]+[a-z0-9]+)*", path) or not re.fullmatch(r"[\w.-]*", tag):
        raise UsageError(f"'{reference}' is not the name of an image", "write REGISTRY/NAME:TAG, in lower case: nvcr.io/nvidia/pytorch:25.09-py3")
    return Reference(registry, path, digest or tag or "latest")


def resolve(reference: str) -> str:
    """The digest that a registry has for it now."""
    where = parse(reference)
    with _Client(where, reference).open(f"/manifests/{where.tag}", MANIFESTS) as answer:
        body = answer.read()
        return answer.headers.get("Docker-Content-Digest") or f"sha256:{hashlib.sha256(body).hexdigest()}"


class _Client:
    """One repository; asks for a token when it is told to."""

    def __init__(self, where: Reference, name: str) -> None:
        self.where, self.name, self.authorization = where, name, ""
        self.opener = urllib.request.build_opener(_Redirects)

    def open(self, path: str, accept: tuple[str, ...] = (), start: int = 0) -> HTTPResponse:
        """KitError, which names the registry, where it does not give this."""
        headers = {"Accept": ", ".join(accept) or "*/*", **({"Range": f"bytes={start}-"} if start else {})}
        for attempt in range(TRIES):
            if self.authorization:
                headers["Authorization"] = self.authorization
            try:
                answer: HTTPResponse = self.opener.open(urllib.request.Request(self.where.url + path, headers=headers), timeout=TIMEOUT_S)  # noqa: S310 - see url
                return answer
            except urllib.error.HTTPError as error:
                if error.code == 401 and not self.authorization:
                    self.authorization = self._authorize(error.headers.get("WWW-Authenticate", ""))
                elif error.code < 500 or attempt + 1 == TRIES:
                    raise self._refusal(error.code) from None
            except (OSError, HTTPException) as error:
                if attempt + 1 == TRIES or _is_final(error):
                    raise self._unreachable(error) from None
                time.sleep(PAUSE_S * 2**attempt)
        raise self._refusal(401)

    def _authorize(self, challenge: str) -> str:
        """The header for what the registry asks for; the user's credentials go to it and to its own realm alone."""
        kind, _, rest = challenge.partition(" ")
        basic = _credentials(self.where.registry)
        if kind.lower() != "bearer":
            return f"Basic {basic}" if basic else ""
        facts = dict(re.findall(r'(\w+)="([^"]*)"', rest))
        realm = facts.pop("realm", "")
        if not realm.startswith("https://") and not self.where.url.startswith("http://"):
            return ""
        facts.setdefault("scope", f"repository:{self.where.repository}:pull")
        request = urllib.request.Request(f"{realm}?{urllib.parse.urlencode(facts)}")  # noqa: S310 - checked above
        if basic:
            request.add_header("Authorization", f"Basic {basic}")
        try:
            with self.opener.open(request, timeout=TIMEOUT_S) as answer:
                found = json.load(answer)
        except urllib.error.HTTPError as error:
            raise self._refusal(error.code) from None
        except (OSError, HTTPException, ValueError) as error:
            raise self._unreachable(error) from None
        return f"Bearer {found.get('token') or found.get('access_token')}"

    def _refusal(self, code: int) -> KitError:
        registry = self.where.registry
        user = " (user $oauthtoken, an API key of ngc.nvidia.com as password)" if registry == "nvcr.io" else ""
        if code in (401, 403):
            return KitError(
                f"{registry} refuses {self.name}: credentials are missing or wrong, or there is no such image",
                f"check the name; log in{user}: docker login {registry}",
            )
        if code == 404:
            return KitError(f"{registry} has no image {self.name}", "check the name and the tag")
        if code == 429:
            return KitError(f"{registry} has had too many requests from here", f"wait, or log in: docker login {registry}")
        return KitError(f"{registry} answers with the error {code} for {self.name}", "try again later")

    def _unreachable(self, error: Exception) -> KitError:
        reason = getattr(error, "reason", None) or error
        return KitError(f"the registry {self.where.registry} of {self.name} cannot be reached: {reason}", "check network and proxy (https_proxy)")


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Blobs are often kept elsewhere, and whoever keeps them must not learn the registry's token."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Optional[urllib.request.Request]:
        request = super().redirect_request(req, fp, code, msg, headers, newurl)
        if request and urllib.parse.urlsplit(newurl).netloc != urllib.parse.urlsplit(req.full_url).netloc:
            request.remove_header("Authorization")
        return request


def _is_final(error: Exception) -> bool:
    """A name that does not resolve, or a closed port, will not be there in a second."""
    reason = str(getattr(error, "reason", None) or error)
    return any(words in reason for words in ("Name or service not known", "Connection refused", "CERTIFICATE_VERIFY_FAILED", "No address associated"))


def _credentials(registry: str) -> str:
    """The base64 of user:password that `docker login` or `podman login` wrote; "" where there is none."""
    home = Path.home()
    places = [os.environ.get("REGISTRY_AUTH_FILE", ""), os.path.join(os.environ.get("DOCKER_CONFIG") or home / ".docker", "config.json")]
    keys = (registry, f"https://{registry}", "https://index.docker.io/v1/") if registry == "docker.io" else (registry, f"https://{registry}")
    for place in filter(None, places):
        try:
            known = json.loads(Path(place).read_text(encoding="utf-8")).get("auths", {})
        except (OSError, ValueError, AttributeError):
            continue
        for key in keys:
            found = known.get(key, {}).get("auth")
            if found and ":" in base64.b64decode(found).decode("utf-8", "replace"):
                return str(found)
    return ""


def architecture() -> str:
    return ARCHITECTURES.get(platform.machine(), platform.machine())
