"""Images from a registry: Debian's docker-registry where it is installed, and a server that fails as registries do."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import os
import random
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import repeat
from pathlib import Path

import kit
import pytest
from kit.base.errors import KitError
from kit.registry import client, credentials, layers, oci, transport

import real_registry
from samples import tar

MANIFEST, INDEX = client.MANIFESTS[0], client.INDEXES[0]
SECRET = "hunter2"
LOGIN = base64.b64encode(f"me:{SECRET}".encode()).decode()


def log_in(tmp_path: Path, *places: str, auth: str = LOGIN) -> None:
    (tmp_path / "docker").mkdir(exist_ok=True)
    (tmp_path / "docker/config.json").write_text(json.dumps({"auths": {place: {"auth": auth} for place in places}}))


def digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def layer(**files: bytes) -> bytes:
    return gzip.compress(tar(files), 1, mtime=0)


def image(*blobs: bytes, architecture: str = "") -> tuple[bytes, dict[str, bytes]]:
    """A manifest, and the blobs that it names."""
    config = json.dumps({"architecture": architecture or oci.architecture(), "os": "linux", "config": {"Env": ["A=b"]}}).encode()
    described = [{"mediaType": "", "digest": digest(blob), "size": len(blob)} for blob in (config, *blobs)]
    manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": described[0], "layers": described[1:]}
    return json.dumps(manifest).encode(), {digest(blob): blob for blob in (config, *blobs)}


def index(**manifests: bytes) -> bytes:
    entries = [
        {"mediaType": MANIFEST, "digest": digest(manifest), "size": len(manifest), "platform": {"os": "linux", "architecture": name}}
        for name, manifest in manifests.items()
    ]
    return json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries}).encode()


def contents(found: oci.Image) -> dict[str, bytes]:
    return {info.name: content.read() for info, content in layers.merge(found) if content}


RANDOM = random.Random(7).randbytes(3_000_000)
BLOBS = (layer(low=b"low", both=b"low"), layer(both=b"top", random=RANDOM))
FILES = {"low": b"low", "both": b"top", "random": RANDOM}
APP, PARTS = image(*BLOBS)  # the image that most tests read


# --- a real registry


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory):
    """The address of a docker-registry."""
    with real_registry.serving(tmp_path_factory.mktemp("registry")) as address:
        yield address


def send(url: str, content: bytes, method: str, kind: str):
    request = urllib.request.Request(url, data=content, method=method, headers={"Content-Type": kind})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.headers


def push(address: str, name: str, version: str, manifest: bytes, blobs: dict[str, bytes], kind: str = MANIFEST) -> None:
    for blob in blobs.values():
        place = send(f"http://{address}/v2/{name}/blobs/uploads/", b"", "POST", "")["Location"]
        send(f"{place}{'&' if '?' in place else '?'}digest={digest(blob)}", blob, "PUT", "application/octet-stream")
    send(f"http://{address}/v2/{name}/manifests/{version}", manifest, "PUT", kind)


def test_a_pushed_image_is_resolved_opened_and_read(real: str) -> None:
    push(real, "team/app", "v1", APP, PARTS)
    assert client.resolve(f"{real}/team/app:v1") == digest(APP)
    assert client.resolve(f"{real}/team/app@{digest(APP)}") == digest(APP)
    for name in (f"{real}/team/app:v1", f"{real}/team/app@{digest(APP)}", f"{real}/team/app:other@{digest(APP)}"):
        found = client.open_image(name)
        assert found[:3] == (name, digest(APP), oci.Config(("A=b",), "", (), (), {}))
        assert [(one.digest, one.size) for one in found.layers] == [(digest(blob), len(blob)) for blob in BLOBS]
        assert contents(found) == FILES


def test_this_machines_image_is_chosen_from_an_index(real: str) -> None:
    foreign, foreign_blobs = image(BLOBS[0], architecture="vax")
    push(real, "multi", digest(foreign), foreign, foreign_blobs)
    push(real, "multi", digest(APP), APP, PARTS)
    both = index(vax=foreign, **{oci.architecture(): APP})
    push(real, "multi", "latest", both, {}, INDEX)
    assert client.resolve(f"{real}/multi") == digest(both)
    found = client.open_image(f"{real}/multi")
    assert found.digest == digest(APP)
    assert contents(found) == FILES
    other = client.open_image(f"{real}/multi", wanted="vax")
    assert (other.digest, other.architecture, len(other.layers)) == (digest(foreign), "vax", 1)


def test_an_image_for_other_machines_is_refused(real: str) -> None:
    foreign, blobs = image(BLOBS[0], architecture="vax")
    push(real, "foreign", "latest", foreign, blobs)
    with pytest.raises(KitError) as error:
        client.open_image(f"{real}/foreign")
    assert error.value.problems[0].problem == f"{real}/foreign is for linux/vax, this machine is linux/{oci.architecture()}"


@pytest.mark.parametrize("name", ["nothing", "team/app:nothing"])
def test_an_unknown_image_or_tag_is_said(real: str, name: str) -> None:
    push(real, "team/app", "v1", APP, PARTS)
    for ask in (client.resolve, client.open_image):
        with pytest.raises(KitError) as error:
            ask(f"{real}/{name}")
        assert error.value.problems[0].problem == f"registry {real} does not know the image or tag {real}/{name.partition(':')[0]}"


# --- a server that fails


class Server:
    """Answers as `handle(path, headers)` says: status, headers, body. Each body is cut after as many bytes as the next of `cuts` says."""

    def __init__(self, handle, host: str = "127.0.0.1", certificate: Path | None = None) -> None:
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.bodies: list[bytes] = []  # of those with one
        self.cuts: Iterator[int] = iter([])
        self.is_silent_after_a_cut, self.is_over = False, threading.Event()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                headers = dict(self.headers.items())
                server.requests.append((self.command, self.path, headers))
                if size := int(headers.get("Content-Length", 0)):
                    server.bodies.append(self.rfile.read(size))
                status, extra, body = handle(self.path, headers)
                self.send_response(status)
                for key, value in extra.items():
                    self.send_header(key, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    cut = next(server.cuts, None)
                    self.wfile.write(body[:cut])
                    if cut is not None and server.is_silent_after_a_cut:
                        self.wfile.flush()
                        server.is_over.wait(600)

            do_HEAD = do_POST = do_GET

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer((host, 0), Handler)
        self.address = f"{host}:{self.http.server_port}"
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self.http.socket = context.wrap_socket(self.http.socket, server_side=True)
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()

    def asked(self, ending: str) -> list[dict[str, str]]:
        return [headers for _, path, headers in self.requests if path.endswith(ending)]


@contextmanager
def serving(handle, **options):
    server = Server(handle, **options)
    try:
        yield server
    finally:
        server.is_over.set()
        server.http.shutdown()
        server.http.server_close()


def plain(manifest: bytes, blobs: dict[str, bytes], ranges: bool = True):
    def handle(path: str, headers: dict[str, str]):
        if "/manifests/" in path:
            return 200, {"Content-Type": MANIFEST, "Docker-Content-Digest": digest(manifest)}, manifest
        blob = blobs[path.rpartition("/")[2]]
        if ranges and "Range" in headers:
            return 206, {}, blob[int(headers["Range"][len("bytes=") : -1]) :]
        return 200, {}, blob

    return handle


app = plain(APP, PARTS)


def private(login: str):
    """As `app`, for whoever has this login."""

    def handle(path: str, headers: dict[str, str]):
        return app(path, headers) if headers.get("Authorization") == f"Basic {login}" else (401, {"WWW-Authenticate": 'Basic realm="x"'}, b"")

    return handle


@pytest.mark.parametrize("ranges", [True, False])
def test_a_layer_that_breaks_half_way_is_resumed(ranges: bool) -> None:
    with serving(plain(APP, PARTS, ranges)) as server:
        found = client.open_image(f"{server.address}/app")
        server.cuts = repeat(1_000_000) if ranges else iter([1_000_000, 2_000_000])
        assert contents(found) == FILES
        sent = [headers.get("Range") for headers in server.asked(digest(BLOBS[1]))]
    assert sent[:2] == [None, "bytes=1000000-"]


def test_a_download_may_break_as_often_as_it_likes_while_it_gets_on() -> None:
    with serving(app) as server:
        found = client.open_image(f"{server.address}/app")
        server.cuts = repeat(200_000)  # fifteen breaks, and eight in a row would be the end
        assert contents(found) == FILES


def test_a_layer_that_never_goes_on_ends_with_what_was_read() -> None:
    with serving(plain(APP, PARTS, ranges=False)) as server:
        found = client.open_image(f"{server.address}/app")
        server.cuts = repeat(1_000)
        with pytest.raises(KitError) as error:
            contents(found)
    said = f"registry {server.address} did not send all of {digest(BLOBS[1])}: the connection ended after 1000 of {len(BLOBS[1])} bytes"
    assert error.value.problems[0].problem == said


def test_what_is_not_what_was_asked_for_is_refused() -> None:
    swapped = {name: blob[:-1] + b"?" if name == digest(BLOBS[1]) else blob for name, blob in PARTS.items()}
    with serving(plain(APP, swapped)) as server:
        with pytest.raises(KitError, match="is damaged: it should be"):
            contents(client.open_image(f"{server.address}/app"))
        with pytest.raises(KitError, match="gives something else"):
            client.open_image(f"{server.address}/app@sha256:{'0' * 64}")


def test_kit_names_itself_where_bots_are_refused() -> None:
    with serving(lambda path, headers: app(path, headers) if headers["User-Agent"] == f"kit/{kit.__version__}" else (403, {}, b"")) as server:
        assert contents(client.open_image(f"{server.address}/app")) == FILES


@pytest.mark.parametrize("status", [400, 405, 501])
def test_a_registry_that_refuses_head_is_asked_with_get(status: int) -> None:
    with serving(lambda path, headers: (status, {}, b"") if server.requests[-1][0] == "HEAD" else app(path, headers)) as server:
        assert client.resolve(f"{server.address}/app") == digest(APP)


@pytest.mark.parametrize("login", [True, False])
def test_a_token_is_asked_for_as_the_registry_says(login: bool, tmp_path: Path) -> None:
    def handle(path: str, headers: dict[str, str]):
        if path.startswith("/token?"):
            return 200, {}, json.dumps({"token": f"for:{headers.get('Authorization')}"}).encode()
        if headers.get("Authorization") != f"Bearer for:{f'Basic {LOGIN}' if login else None}":
            challenge = f'Bearer realm="http://{server.address}/token",service="it",scope="repository:team/app:pull"'
            return 401, {"WWW-Authenticate": challenge}, b"{}"
        return app(path, headers)

    with serving(handle) as server:
        if login:
            log_in(tmp_path, server.address)
        assert client.resolve(f"{server.address}/team/app") == digest(APP)
        assert contents(client.open_image(f"{server.address}/team/app")) == FILES
        tokens = [path for _, path, _ in server.requests if path.startswith("/token")]
    assert tokens == ["/token?scope=repository%3Ateam%2Fapp%3Apull&service=it"] * 2  # one for each call, not for each request


@pytest.mark.parametrize(
    "challenge",
    [
        'Basic realm="x, y", Bearer realm="TOKENS",service="it"',
        'Bearer realm="TOKENS",service="it", Basic realm="x"',
        'Negotiate, bearer Realm="TOKENS", Service=it',
        "Bearer realm=TOKENS,service=it",
    ],
)
def test_a_challenge_is_read_as_http_writes_it(challenge: str) -> None:
    def handle(path: str, headers: dict[str, str]):
        if path.startswith("/token?"):
            return 200, {}, b'{"token": "x"}'
        if headers.get("Authorization") != "Bearer x":
            return 401, {"WWW-Authenticate": challenge.replace("TOKENS", f"http://{server.address}/token")}, b""
        return app(path, headers)

    with serving(handle) as server:
        assert contents(client.open_image(f"{server.address}/app")) == FILES
        assert server.asked("/token?scope=repository%3Aapp%3Apull&service=it")


def test_a_login_by_name_and_password_is_used(tmp_path: Path) -> None:
    with serving(private(LOGIN)) as server:
        log_in(tmp_path, server.address)
        assert contents(client.open_image(f"{server.address}/app")) == FILES


@pytest.mark.parametrize("status", [302, 303, 307, 308])
def test_a_redirect_to_another_host_takes_no_login_along(status: int, tmp_path: Path) -> None:
    def handle(path: str, headers: dict[str, str]):
        if headers.get("Authorization") != f"Basic {LOGIN}":
            return 401, {"WWW-Authenticate": 'Basic realm="x"'}, b""
        if "/blobs/" in path and "moved" not in path:
            return status, {"Location": path.replace("/blobs/", "/blobs/moved/")}, b""
        return (status, {"Location": f"http://{storage.address}{path}"}, b"") if "/blobs/" in path else app(path, headers)

    with serving(app) as storage, serving(handle) as server:
        log_in(tmp_path, server.address)
        found = client.open_image(f"{server.address}/app")
        storage.cuts = repeat(1_000_000)
        assert contents(found) == FILES
        assert storage.requests
        assert not [headers for _, _, headers in storage.requests if "Authorization" in headers]
        assert [headers["Authorization"] for headers in server.asked(digest(BLOBS[0])) if headers] == [f"Basic {LOGIN}"] * 2


def test_whom_a_redirect_leads_to_cannot_ask_for_the_login(tmp_path: Path) -> None:
    def thief(path: str, headers: dict[str, str]):
        return 401, {"WWW-Authenticate": f'Bearer realm="http://{storage.address}/token"'}, b""

    def handle(path: str, headers: dict[str, str]):
        return 307, {"Location": f"http://{storage.address}{path}"}, b""

    with serving(thief) as storage, serving(handle) as server:
        log_in(tmp_path, server.address)
        with pytest.raises(KitError, match="refuses your login"):
            client.open_image(f"{server.address}/app")
        assert [(path, "Authorization" in headers) for _, path, headers in storage.requests] == [("/v2/app/manifests/latest", False)]


def test_no_redirect_and_no_login_goes_to_plain_http_elsewhere(tmp_path: Path) -> None:
    def handle(path: str, headers: dict[str, str]):
        if path.startswith("/v2/redirect"):
            return 307, {"Location": "http://storage.invalid/x"}, b""
        return 401, {"WWW-Authenticate": 'Bearer realm="http://login.invalid/token"'}, b""

    with serving(handle) as server:
        log_in(tmp_path, server.address)
        with pytest.raises(KitError, match=f"registry {server.address} redirects to http://storage.invalid, and kit follows only to HTTPS"):
            client.resolve(f"{server.address}/redirect")
        with pytest.raises(KitError, match=f"registry {server.address} has its logins at an address without HTTPS"):
            client.resolve(f"{server.address}/login")


@pytest.mark.parametrize(
    ("location", "said"),
    [
        ("http://me:hunter2@storage.invalid:1/x?signature=hunter2", "redirects to http://storage.invalid, and kit follows only to HTTPS"),
        ("file:///etc/passwd", "redirects to file://, and kit follows only to HTTPS"),
        ("ftp://storage.invalid/x", "redirects to ftp://storage.invalid, and kit follows only to HTTPS"),
        ("/v2/app/manifests/latest?signature=hunter2", "redirects again and again, at last to http://127.0.0.1"),
        ("http://[storage", "gives an address or a token that is none"),
        ("https://storage..invalid/x", "gives an address or a token that is none"),
        (None, "answers with HTTP 307 for {0}/app"),
    ],
)
def test_a_redirect_that_is_not_followed_is_said_with_its_host_alone(location: str | None, said: str) -> None:
    with serving(lambda path, headers: (307, {"Location": location} if location else {}, b"")) as server, pytest.raises(KitError) as error:
        client.resolve(f"{server.address}/app")
    assert error.value.problems[0].problem == f"registry {server.address} {said.format(server.address)}"
    assert SECRET not in str(error.value)


def test_a_part_that_is_missing_is_not_told_as_a_missing_image() -> None:
    config = json.loads(APP)["config"]["digest"]
    for missing in (config, digest(BLOBS[1])):

        def handle(path: str, headers: dict[str, str], missing: str = missing):
            return (404, {}, b"") if path.endswith(missing) else app(path, headers)

        with serving(handle) as server, pytest.raises(KitError) as error:
            contents(client.open_image(f"{server.address}/app"))
        expected = f"registry {server.address} has no more of {server.address}/app than its manifest: its part {missing} is not there"
        assert error.value.problems[0][1:] == (expected, "have the image pushed again")


def typed(config: str, *layers: str, **more: object) -> bytes:
    """A manifest whose parts are of these media types."""
    document = json.loads(image(*BLOBS[: len(layers)])[0])
    document["config"]["mediaType"] = config
    for entry, kind in zip(document["layers"], layers):
        entry["mediaType"] = kind
    return json.dumps({**document, **more}).encode()


OCI_CONFIG, OCI_LAYER = "application/vnd.oci.image.config.v1+json", "application/vnd.oci.image.layer.v1.tar+gzip"
DOCKER_CONFIG, DOCKER_LAYER = "application/vnd.docker.container.image.v1+json", "application/vnd.docker.image.rootfs.diff.tar.gzip"


@pytest.mark.parametrize(
    ("manifest", "problem"),
    [
        (
            typed("application/vnd.cncf.helm.config.v1+json", "application/vnd.cncf.helm.chart.content.v1.tar+gzip"),
            "is not a container image: its configuration",
        ),
        (typed("application/vnd.oci.empty.v1+json", "text/plain", artifactType="application/vnd.me"), "is not a container image: its configuration"),
        (typed("application/vnd.sylabs.sif.config.v1+json", "application/vnd.sylabs.sif.layer.v1.sif"), "is not a container image: its configuration"),
        (typed("application/vnd.docker.plugin.v1+json", DOCKER_LAYER), "is not a container image: its configuration"),
        (typed(OCI_CONFIG, "application/vnd.dev.cosign.simplesigning.v1+json"), "is not a container image: a layer"),
        (typed(OCI_CONFIG, OCI_LAYER, "application/vnd.in-toto+json"), "is not a container image: a layer"),
        (typed(DOCKER_CONFIG, "application/vnd.ollama.image.model"), "is not a container image: a layer"),
        (typed(OCI_CONFIG, "application/vnd.oci.image.layer.nydus.blob.v1"), "is not a container image: a layer"),
        (typed(OCI_CONFIG, f"{OCI_LAYER}+encrypted"), "is encrypted: a layer"),
    ],
)
def test_what_is_no_image_of_a_container_is_refused(manifest: bytes, problem: str) -> None:
    with serving(plain(manifest, PARTS)) as server:
        with pytest.raises(KitError, match=f"^kit: {server.address}/thing {problem} is of the type application/vnd"):
            client.open_image(f"{server.address}/thing")
        assert not server.asked(digest(BLOBS[0]))


@pytest.mark.parametrize("config", ["", OCI_CONFIG, DOCKER_CONFIG, f"{DOCKER_CONFIG}; charset=utf-8", "application/octet-stream", "text/html"])
@pytest.mark.parametrize(
    "kind",
    ["", OCI_LAYER, DOCKER_LAYER, "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip", "application/vnd.oci.image.layer.v1.tar", "application/gzip"],
)
def test_images_of_all_tools_are_taken(config: str, kind: str) -> None:
    with serving(plain(typed(config, kind, kind), PARTS)) as server:
        assert len(client.open_image(f"{server.address}/app").layers) == 2


def test_the_least_variant_of_an_index_is_taken_and_the_only_one_with_a_word() -> None:
    notes: list[str] = []
    least = {"amd64": "v1", "arm64": "v8"}.get(oci.architecture(), "")
    tuned = image(BLOBS[0])[0].replace(b'"schemaVersion": 2', b'"schemaVersion":  2')

    def entry(manifest: bytes, variant: str | None) -> dict:
        platform = {"os": "linux", "architecture": oci.architecture(), **({"variant": variant} if variant is not None else {})}
        return {"mediaType": MANIFEST, "digest": digest(manifest), "size": len(manifest), "platform": platform}

    def opened(*entries: dict) -> str:
        both = json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries}).encode()
        manifests = {digest(one): one for one in (APP, tuned)}

        def handle(path: str, headers: dict[str, str]):
            return (200, {}, manifests.get(path.rpartition("/")[2], both)) if "/manifests/" in path else app(path, headers)

        with serving(handle) as server:
            return client.open_image(f"{server.address}/app", notes.append).digest

    for variant in (None, "", least):
        assert opened(entry(tuned, "v9"), entry(APP, variant)) == digest(APP)
        assert opened(entry(APP, variant), entry(tuned, "v9")) == digest(APP)
        assert opened(entry(tuned, "fast"), entry(APP, variant)) == digest(APP)
    assert notes == []
    assert opened(entry(tuned, "v9")) == digest(tuned)
    if least:
        (note,) = notes
        assert note.endswith(f"/app is for linux/{oci.architecture()}/v9 alone: on a CPU without that, its programs end with 'Illegal instruction'")


@pytest.mark.parametrize(
    "change",
    [
        lambda manifest: {**manifest, "layers": [{"digest": "../../../../etc/passwd", "size": 1}]},
        lambda manifest: {**manifest, "layers": [{"digest": "", "size": 1}]},
        lambda manifest: {**manifest, "layers": [{**manifest["layers"][0], "size": -1}]},
        lambda manifest: {**manifest, "layers": [{**manifest["layers"][0], "size": "1"}]},
        lambda manifest: {**manifest, "layers": [1]},
        lambda manifest: {**manifest, "config": []},
        lambda manifest: {**manifest, "config": {"digest": "latest"}},
        lambda manifest: {"manifests": [1]},
        lambda manifest: {"manifests": {"digest": "x"}},
        lambda manifest: {"manifests": [{"digest": "latest"}]},
        lambda manifest: {"manifests": [{"digest": None}]},
    ],
)
def test_a_manifest_of_another_form_is_no_image(change) -> None:
    other = json.dumps(change(json.loads(APP))).encode()
    with serving(plain(other, PARTS)) as server, pytest.raises(KitError, match="/app is not an image, or is in Docker's format from before 2016"):
        client.open_image(f"{server.address}/app")


@pytest.mark.parametrize(
    ("status", "login", "problem"),
    [
        (401, False, "registry {0} wants a login for {0}/app, or has no such image"),
        (403, False, "registry {0} wants a login for {0}/app, or has no such image"),
        (401, True, "registry {0} refuses your login for {0}/app"),
        (403, True, "registry {0} refuses your login for {0}/app"),
        (404, False, "registry {0} does not know the image or tag {0}/app"),
        (429, True, "registry {0} takes no more requests from here for now"),
        (408, True, "registry {0} answers with HTTP 408 for {0}/app"),
        (418, True, "registry {0} answers with HTTP 418 for {0}/app"),
        (503, True, "registry {0} answers with HTTP 503 for {0}/app"),
    ],
)
def test_a_refusal_names_the_registry_and_no_secret(status: int, login: bool, problem: str, tmp_path: Path) -> None:
    with serving(lambda path, headers: (status, {"WWW-Authenticate": 'Basic realm="x"'}, b"no")) as server:
        if login:
            log_in(tmp_path, server.address)
        for ask in (client.resolve, client.open_image):
            server.requests.clear()
            with pytest.raises(KitError) as error:
                ask(f"{server.address}/app")
            assert error.value.problems[0].problem == problem.format(server.address)
            assert error.value.problems[0].fix
            assert SECRET not in str(error.value) and LOGIN not in str(error.value)
            assert len(server.requests) == {503: 8, 429: 8, 408: 8, 401: 1 + login}.get(status, 1)


def test_a_registry_that_recovers_is_asked_again() -> None:
    failures = iter([503, 500])

    def handle(path: str, headers: dict[str, str]):
        status = next(failures, None)
        return (status, {}, b"") if status else app(path, headers)

    with serving(handle) as server:
        assert contents(client.open_image(f"{server.address}/app")) == FILES


@pytest.mark.parametrize("status", [429, 503])
def test_a_registry_that_is_busy_is_left_alone_for_as_long_as_it_says(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    monkeypatch.setattr(transport, "QUIET_S", 0.9)
    times = []
    busy = {path: iter(["0", "1", "soon"]) for path in ("manifests", digest(BLOBS[1]))}

    def handle(path: str, headers: dict[str, str]):
        for part, waits in busy.items():
            if part in path and (wait := next(waits, None)):
                times.append(time.monotonic())
                return status, {"Retry-After": wait}, b""
        return app(path, headers)

    with serving(handle) as server:
        assert contents(client.open_image(f"{server.address}/app", notes.append)) == FILES
        problem = {429: "takes no more requests from here for now", 503: f"answers with HTTP 503 for {server.address}/app"}[status]
        assert notes.count(f"registry {server.address} {problem}: trying again in 1 s") == 2
    assert len(times) == 6 and times[2] - times[1] > 1


def test_a_layer_is_waited_for_longer_than_a_manifest_and_with_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    monkeypatch.setattr(transport, "QUIET_S", 0.05)
    failures = iter([502, 502, 502, 502, 502, 502])

    def handle(path: str, headers: dict[str, str]):
        status = next(failures, None) if "Range" in headers else None
        return (status, {}, b"") if status else app(path, headers)

    with serving(handle) as server:
        found = client.open_image(f"{server.address}/app", notes.append)
        server.cuts = iter([1_000_000])
        assert contents(found) == FILES
        assert set(notes) == {f"registry {server.address} answers with HTTP 502 for {server.address}/app: trying again in 0 s"}


def test_a_registry_that_first_fetches_a_layer_itself_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    is_noted = threading.Event()

    def note(text: str) -> None:
        notes.append(text)
        is_noted.set()

    def handle(path: str, headers: dict[str, str]):
        if path.endswith(digest(BLOBS[1])):
            is_noted.wait(50)
            time.sleep(0.5)  # longer than the second in all
        return app(path, headers)

    with serving(handle) as server:
        found = client.open_image(f"{server.address}/app", note)
        monkeypatch.setattr(transport, "TIMEOUT_S", 1.0)
        monkeypatch.setattr(transport, "ANSWER_S", 60.0)
        assert contents(found) == FILES
        assert len(server.asked(digest(BLOBS[1]))) == 1
        proxy = "since a registry that is a proxy first fetches a layer itself"
        assert notes == [f"registry {server.address} has not answered for 1 s: waiting up to 60 s, {proxy}"]


def test_a_layer_that_does_not_come_is_no_wrong_name_and_no_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    is_over = threading.Event()

    def handle(path: str, headers: dict[str, str]):
        if path.endswith(digest(BLOBS[1])):
            is_over.wait(60)
        return app(path, headers)

    with serving(handle) as server:
        found = client.open_image(f"{server.address}/app")
        for name in ("TIMEOUT_S", "ANSWER_S"):
            monkeypatch.setattr(transport, name, 2.0)
        with pytest.raises(KitError) as error:
            contents(found)
        is_over.set()
    assert error.value.problem == f"registry {server.address} did not send all of {digest(BLOBS[1])}: timed out"
    assert error.value.fix.startswith("try again in some minutes: a registry that is a proxy may still fetch it; else check ")
    assert len(server.asked(digest(BLOBS[1]))) == 1


def test_a_layer_that_stops_coming_is_asked_for_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "TIMEOUT_S", 0.3)
    with serving(app) as server:
        found = client.open_image(f"{server.address}/app")
        server.cuts, server.is_silent_after_a_cut = iter([1_000_000]), True
        start = time.monotonic()
        assert contents(found) == FILES
        assert time.monotonic() - start < transport.ANSWER_S / 2
        assert len(server.asked(digest(BLOBS[1]))) >= 2  # more on a busy machine


def test_a_manifest_that_was_cut_off_is_asked_for_again() -> None:
    with serving(app) as server:
        server.cuts = iter([10, len(APP) - 1])
        assert contents(client.open_image(f"{server.address}/app")) == FILES
        assert len(server.asked("/manifests/latest")) >= 3


def test_a_registry_that_cannot_be_reached_is_named() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        with pytest.raises(KitError) as error:
            client.resolve(f"{address}/app")
    assert error.value.problems[0].problem == f"registry {address} cannot be reached: Connection refused"


@pytest.fixture
def certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A certificate, which nobody trusts yet, with its key, for two names of this machine that are not those of loopback."""
    if not shutil.which("openssl"):
        pytest.skip("openssl is not installed")
    subject = ["-subj", "/CN=127.0.0.2", "-addext", "subjectAltName=IP:127.0.0.2,IP:127.0.0.3", "-days", "2"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *subject, "-keyout", tmp_path / "both.pem", "-out", tmp_path / "crt"]
    subprocess.run(command, capture_output=True, check=True)
    (tmp_path / "both.pem").write_bytes((tmp_path / "both.pem").read_bytes() + (tmp_path / "crt").read_bytes())
    return tmp_path / "both.pem"


def test_other_machines_are_asked_with_https_and_their_certificate_is_checked(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(app, host="127.0.0.2", certificate=certificate) as server:
        with pytest.raises(KitError, match=f"registry {server.address} cannot be reached: .*certificate verify failed"):
            client.resolve(f"{server.address}/app")
        assert not server.requests
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate.with_name("crt")))
        assert contents(client.open_image(f"{server.address}/app")) == FILES


def test_a_registry_without_tls_is_said_to_be_one() -> None:
    with serving(app, host="127.0.0.2") as server, pytest.raises(KitError) as error:
        client.resolve(f"{server.address}/app")
    assert error.value.problem == f"registry {server.address} speaks HTTP without TLS, which kit uses only with one on this machine"


class Proxy(BaseHTTPRequestHandler):
    """Lets through whoever has the password, as a site's proxy for HTTPS does."""

    let_through: list[str]

    def do_CONNECT(self) -> None:
        if self.headers.get("Proxy-Authorization") != f"Basic {LOGIN}":
            self.send_error(407)
            return
        self.let_through.append(self.path)
        host, _, port = self.path.rpartition(":")
        with socket.create_connection((host, int(port))) as far:
            self.send_response(200)
            self.end_headers()
            back = threading.Thread(target=self.copy, args=(far, self.connection))
            back.start()
            self.copy(self.connection, far)
            back.join()

    def copy(self, source: socket.socket, target: socket.socket) -> None:
        while chunk := source.recv(1 << 16):
            target.sendall(chunk)
        target.shutdown(socket.SHUT_WR)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def through_proxy(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The addresses that were reached through the proxy, which the environment names with a password."""
    handler = type("Handler", (Proxy,), {"let_through": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    for name in ("http_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("https_proxy", f"http://me:{SECRET}@127.0.0.1:{server.server_port}")
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate.with_name("crt")))
    yield handler.let_through
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("is_direct", [False, True])
def test_the_password_of_a_proxy_goes_to_the_proxy_alone(is_direct: bool, certificate: Path, through_proxy: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after a redirect, to a machine that is reached through the proxy, or directly."""
    if is_direct:
        monkeypatch.setenv("no_proxy", "127.0.0.3")

    def handle(path: str, headers: dict[str, str]):
        return (307, {"Location": f"https://{storage.address}{path}"}, b"") if "/blobs/" in path else app(path, headers)

    with serving(app, host="127.0.0.3", certificate=certificate) as storage, serving(handle, host="127.0.0.2", certificate=certificate) as server:
        assert contents(client.open_image(f"{server.address}/app")) == FILES
        assert set(through_proxy) == ({server.address} if is_direct else {server.address, storage.address})
        asked = [*server.requests, *storage.requests]
        assert storage.requests and not [headers for _, _, headers in asked if "Proxy-Authorization" in headers]


def test_another_machine_leads_kit_to_no_port_of_this_one(certificate: Path, through_proxy: list[str]) -> None:
    def handle(path: str, headers: dict[str, str]):
        if path.startswith("/v2/redirect"):
            return 307, {"Location": f"http://{here.address}/x"}, b""
        return 401, {"WWW-Authenticate": f'Bearer realm="http://{here.address}/token"'}, b""

    with serving(lambda path, headers: (200, {}, b"")) as here, serving(handle, host="127.0.0.2", certificate=certificate) as server:
        with pytest.raises(KitError, match=f"registry {server.address} redirects to http://127.0.0.1, and kit follows only to HTTPS"):
            client.resolve(f"{server.address}/redirect")
        with pytest.raises(KitError, match=f"registry {server.address} has its logins at an address without HTTPS"):
            client.resolve(f"{server.address}/login")
        assert here.requests == []


# --- names and logins

DIGEST = f"sha256:{'a' * 64}"


@pytest.mark.parametrize(
    ("given", "parsed"),
    [
        ("python", ("docker.io", "library/python", "latest")),
        ("python:3.11-slim", ("docker.io", "library/python", "3.11-slim")),
        ("pytorch/pytorch:2.8", ("docker.io", "pytorch/pytorch", "2.8")),
        ("docker.io/python", ("docker.io", "library/python", "latest")),
        ("index.docker.io/a/b", ("docker.io", "a/b", "latest")),
        ("nvcr.io/nvidia/pytorch:25.09-py3", ("nvcr.io", "nvidia/pytorch", "25.09-py3")),
        ("nvcr.io#nvidia/pytorch:25.09-py3", ("nvcr.io", "nvidia/pytorch", "25.09-py3")),
        ("intranet#a/b", ("intranet", "a/b", "latest")),
        ("$oauthtoken@nvcr.io#nvidia/pytorch:25.09-py3", ("nvcr.io", "nvidia/pytorch", "25.09-py3")),
        (f"ada@intranet#a/b@{DIGEST}", ("intranet", "a/b", DIGEST)),
        ("localhost/a", ("localhost", "a", "latest")),
        ("localhost:5000/a/b/c:t", ("localhost:5000", "a/b/c", "t")),
        ("[::1]:5000/a", ("[::1]:5000", "a", "latest")),
        (f"python@{DIGEST}", ("docker.io", "library/python", DIGEST)),
        (f"ghcr.io/a/b:t@{DIGEST}", ("ghcr.io", "a/b", DIGEST)),
    ],
)
def test_names_mean_what_they_mean_to_docker(given: str, parsed: tuple[str, str, str]) -> None:
    assert client.parse(given) == parsed


@pytest.mark.parametrize(
    "given",
    [
        "",
        "Python",
        "a/B",
        "a//b",
        "../a",
        "a:",
        "a:b c",
        "a@",
        "a@sha256:1",
        f"a@{DIGEST}0",
        "-a",
        "http://a/b",
        "x.y/",
        "a b/c",
        "x.y#a#b",
        "x.y?/a",
        "x.y/a\n",
        "u@x.y/a",
        "x.y:99999/a",
        *(["[1:2:3]/a"] if sys.version_info >= (3, 11, 4) else []),  # before that, Python took it for an address
    ],
)
def test_what_is_no_name_is_said_before_anyone_is_asked(given: str) -> None:
    with pytest.raises(KitError) as error:
        client.parse(given)
    assert error.value.problems[0].problem == f"'{given}' is not the name of an image in a registry"


def test_only_this_machine_is_asked_without_https() -> None:
    hosts = {host: client.parse(f"{host}/a").open().base for host in ("localhost:1", "127.0.0.1", "[::1]:2", "localhost.example.com", "10.0.0.1:5000")}
    assert hosts == {
        "localhost:1": "http://localhost:1/v2/a",
        "127.0.0.1": "http://127.0.0.1/v2/a",
        "[::1]:2": "http://[::1]:2/v2/a",
        "localhost.example.com": "https://localhost.example.com/v2/a",
        "10.0.0.1:5000": "https://10.0.0.1:5000/v2/a",
    }
    assert client.parse("python").open().base == "https://registry-1.docker.io/v2/library/python"


@pytest.mark.parametrize(
    ("key", "image"),
    [
        ("https://index.docker.io/v1/", "python"),
        ("docker.io", "python"),
        ("nvcr.io", "nvcr.io/nvidia/pytorch"),
        ("https://nvcr.io", "nvcr.io/nvidia/pytorch"),
        ("https://ghcr.io/v2/", "ghcr.io/a/b"),
        ("quay.io/team", "quay.io/team/app"),
    ],
)
def test_a_login_is_found_under_each_name_that_tools_give_it(key: str, image: str, tmp_path: Path) -> None:
    log_in(tmp_path, key)
    assert client.parse(image).open().found.login == LOGIN
    assert client.parse("other.example.com/x").open().found.login is None


def test_podmans_file_comes_first_and_broken_files_are_no_login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log_in(tmp_path, "quay.io", auth=base64.b64encode(b"docker:x").decode())
    (tmp_path / "auth.json").write_text(json.dumps({"auths": {"quay.io": {"auth": LOGIN}, "quay.io/empty": {}, "x.io": {"auth": "!"}}}))
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(tmp_path / "auth.json"))
    assert client.parse("quay.io/a").open().found.login == LOGIN
    assert client.parse("quay.io/empty/a").open().found.login == LOGIN
    assert client.parse("x.io/a").open().found.login is None
    (tmp_path / "auth.json").write_text("{")
    assert client.parse("x.io/a").open().found.login is None


@pytest.mark.parametrize(
    ("variables", "searched"),
    [
        ({"XDG_RUNTIME_DIR": "run"}, ["run/containers/auth.json"]),
        ({"XDG_RUNTIME_DIR": ""}, [f"/run/user/{os.getuid()}/containers/auth.json", f"/run/containers/{os.getuid()}/auth.json"]),
    ],
)
def test_what_podman_login_wrote_is_found_without_being_named(
    variables: dict[str, str], searched: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the order of containers-auth.json(5)."""
    for name, value in {**variables, "XDG_CONFIG_HOME": "settings"}.items():
        monkeypatch.setenv(name, value and str(tmp_path / value))
    found = credentials.files()
    assert found == [*(tmp_path / path for path in searched), tmp_path / "settings/containers/auth.json", tmp_path / "docker/config.json"]
    for file in (file for file in found if file.is_relative_to(tmp_path)):
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps({"auths": {"quay.io": {"auth": LOGIN}}}))
        assert client.parse("quay.io/a").open().found.login == LOGIN
        file.unlink()


def test_a_line_end_in_a_login_is_none_of_it(tmp_path: Path) -> None:
    log_in(tmp_path, "quay.io", auth=f"{LOGIN}\n")
    assert client.parse("quay.io/a").open().found.login == LOGIN
