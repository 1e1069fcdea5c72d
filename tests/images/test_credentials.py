"""Logins of credential helpers and of Enroot: what they have reaches the registry, and nobody else."""

from __future__ import annotations

import base64
import json
import os
import urllib.parse
from pathlib import Path

import pytest
from kit.base.errors import KitError
from kit.registry import client, credentials
from test_registry import FILES, Server, app, contents, private, serving

from samples import stub

SECRET = "hunter2 'x"
LOGIN = base64.b64encode(f"me:{SECRET}".encode()).decode()
HUB = "https://index.docker.io/v1/"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Places for credential helpers and logins."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    for folder in ("docker", "enroot"):
        (tmp_path / folder).mkdir()
    return tmp_path


def settings(home: Path, **said: object) -> None:
    (home / "docker/config.json").write_text(json.dumps(said))


def helper(home: Path, name: str, script: str) -> Path:
    """A credential helper; the file notes its arguments and what it is asked for."""
    asked = home / f"asked-{name}"
    stub(home / "bin", f"docker-credential-{name}", f'printf "%s:%s\\n" "$*" "$(cat)" >>"{asked}"\n{script}')
    return asked


def answering(home: Path, name: str, user: str = "me") -> Path:
    (home / f"answer-{name}").write_text(json.dumps({"ServerURL": "x", "Username": user, "Secret": SECRET}))
    return helper(home, name, f'cat "{home}/answer-{name}"')


def refused(server: Server) -> str:
    with pytest.raises(KitError) as error:
        client.open_image(f"{server.address}/app")
    said = str(error.value)
    assert "hunter2" not in said and LOGIN not in said
    return said


def login(name: str) -> str | None:
    return client.parse(name).open().found.login


def test_a_helper_gives_the_login_and_the_secret_is_in_no_ones_arguments(home: Path) -> None:
    asked = answering(home, "mine")
    with serving(private(LOGIN)) as server:
        settings(home, credHelpers={server.address: "mine"})
        assert contents(client.open_image(f"{server.address}/app")) == FILES
        assert asked.read_text() == f"get:{server.address}\n"
        log_in = [headers.get("Authorization") for _, _, headers in server.requests]
    assert log_in[0] is None and set(log_in[1:]) == {f"Basic {LOGIN}"}


@pytest.mark.parametrize(
    ("said", "image", "asked"),
    [
        ({"credsStore": "mine"}, "nvcr.io/nvidia/pytorch", "get:nvcr.io\n"),
        ({"credsStore": "mine"}, "python", f"get:{HUB}\n"),
        ({"credsStore": "other", "credHelpers": {"nvcr.io": "mine"}}, "nvcr.io/nvidia/pytorch", "get:nvcr.io\n"),
        ({"credHelpers": {HUB: "mine"}}, "python", f"get:{HUB}\n"),
        ({"credHelpers": {"docker.io": "mine"}}, "python", f"get:{HUB}\n"),
    ],
)
def test_a_helper_is_asked_as_docker_asks_it(said: dict, image: str, asked: str, home: Path) -> None:
    noted = answering(home, "mine")
    answering(home, "other", user="other")
    settings(home, **said)
    assert login(image) == LOGIN and noted.read_text() == asked


def test_helpers_of_other_registries_and_of_no_name_are_not_asked(home: Path) -> None:
    asked = answering(home, "mine")
    for said in (
        {"credHelpers": {"nvcr.io": "mine"}},
        {"credsStore": "../docker-credential-mine"},
        {"credsStore": 5},
        {"credHelpers": ["mine"]},
        {"credsStore": ""},
    ):
        settings(home, **said)
        assert login("quay.io/x") is None and not asked.exists()


def test_a_public_image_asks_no_helper(home: Path) -> None:
    asked = answering(home, "mine")
    settings(home, credsStore="mine")
    with serving(app) as server:
        assert contents(client.open_image(f"{server.address}/app")) == FILES
    assert not asked.exists()


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (None, "is not installed here"),
        (f'echo "{SECRET}"; echo "{SECRET}" >&2; exit 3', "failed with code 3: see what docker pull says of it"),
        ("exec sleep 60", "did not answer within 0 s"),
        ("sleep 5", "did not answer within 0 s"),
        (f'echo "{SECRET}"', "answered with something else than a login"),
        ("echo '[]'", "answered with something else than a login"),
        ('echo \'{"Username": "me"}\'', "answered with something else than a login"),
        ("kill -9 $$", "failed with code -9: see what docker pull says of it"),
    ],
)
def test_a_helper_that_fails_is_told_with_the_refusal_and_is_nothing_to_a_public_image(
    script: str | None, said: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "did not answer" in said:
        monkeypatch.setattr(credentials, "HELPER_TIMEOUT_S", 0.4)
    settings(home, credsStore="mine")
    if script:
        helper(home, "mine", script)
    with serving(private(LOGIN)) as server:
        assert f"; docker-credential-mine, which {home}/docker/config.json names, {said})" in refused(server)
    wants_tokens = {"WWW-Authenticate": 'Bearer realm="TOKENS"'}

    def anyones(path: str, headers: dict[str, str]):
        """As Docker Hub does: a token for everyone."""
        if path.startswith("/token"):
            return 200, {}, b'{"token": "x"}'
        if headers.get("Authorization") != "Bearer x":
            return 401, {"WWW-Authenticate": wants_tokens["WWW-Authenticate"].replace("TOKENS", f"http://{server.address}/token")}, b""
        return app(path, headers)

    with serving(anyones) as server:
        assert contents(client.open_image(f"{server.address}/app")) == FILES


@pytest.mark.parametrize("is_in_file", [True, False])
def test_an_identity_token_is_exchanged_and_is_no_empty_password(is_in_file: bool, home: Path) -> None:
    """As `az acr login` gets one, and Docker, or its helper, keeps it."""
    empty, refusal = base64.b64encode(b"00000000-0000-0000-0000-000000000000:").decode(), 0

    def handle(path: str, headers: dict[str, str]):
        if path == "/oauth2/token":
            form = urllib.parse.parse_qs(server.bodies[-1].decode())
            is_right = form.get("refresh_token") == [SECRET] and form["grant_type"] == ["refresh_token"] and form["scope"] == ["repository:app:pull"]
            return (200, {}, b'{"access_token": "x"}') if is_right and form["service"] == ["it"] else (refusal, {}, b"")
        if headers.get("Authorization") != "Bearer x":
            return 401, {"WWW-Authenticate": f'Bearer realm="http://{server.address}/oauth2/token",service="it"'}, b""
        return app(path, headers)

    with serving(handle) as server:
        if is_in_file:
            settings(home, auths={server.address: {"auth": empty, "identitytoken": SECRET}})
        else:
            answering(home, "mine", user="<token>")
            settings(home, credsStore="mine")
        assert contents(client.open_image(f"{server.address}/app")) == FILES
        settings(home, auths={server.address: {"auth": empty, "identitytoken": "old"}})
        for refusal in (400, 401):
            assert "refuses your login" in refused(server)


def test_a_login_by_name_and_password_comes_before_an_identity_token(home: Path) -> None:
    with serving(private(LOGIN)) as server:
        settings(home, auths={server.address: {"auth": "", "identitytoken": "x"}})
        enroot(home, f"machine {server.address} login me password {SECRET}")
        assert contents(client.open_image(f"{server.address}/app")) == FILES


def test_a_helper_that_has_no_login_is_no_failure_and_what_the_file_has_is_taken(home: Path) -> None:
    helper(home, "mine", "echo credentials not found in native keychain; exit 1")
    settings(home, credsStore="mine", auths={"quay.io": {"auth": LOGIN}})
    assert login("quay.io/x") == LOGIN
    with serving(private(LOGIN)) as server:
        assert "docker-credential-mine" not in refused(server)


# ---------------------------------------------------------------- Enroot's file


def enroot(home: Path, *lines: str) -> None:
    (home / "enroot/.credentials").write_text("".join(f"{line}\n" for line in lines))


def test_a_login_in_enroots_file_is_used(home: Path) -> None:
    with serving(private(LOGIN)) as server:
        enroot(home, "# mine", "machine quay.io login me password no", f"  machine 127.0.0.1\tlogin me  password {SECRET}  ")
        assert contents(client.open_image(f"{server.address}/app")) == FILES


@pytest.mark.parametrize(
    ("line", "image"),
    [
        ("machine nvcr.io login me password {}", "nvcr.io/nvidia/pytorch"),
        ("machine auth.docker.io login me password {}", "python"),
        ("machine registry-1.docker.io login me password {}", "nvidia/cuda"),
        ("machine index.docker.io login me password {}", "nvidia/cuda"),
        ("machine registry-1.docker.io login me password {}", "registry-1.docker.io/nvidia/cuda"),
        ("machine example.org login me password {}", "example.org:5005/x"),
        ("machine example.org:5005 login me password {}", "example.org:5005/x"),
        ("machine nvcr.io\n  login me\n  password {}\nmachine quay.io login me password no", "nvcr.io/nvidia/pytorch"),
        ("machine nvcr.io login me password $MY_TOKEN", "nvcr.io/nvidia/pytorch"),
        ("machine nvcr.io login me password ${{MY_TOKEN}}", "nvcr.io/nvidia/pytorch"),
    ],
)
def test_machines_are_named_as_enroot_names_them(line: str, image: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", SECRET)
    enroot(home, "machine other.io login me password $(exit 1)", line.format(SECRET))
    assert login(image) == LOGIN
    assert login("other.example.com/x") is None


def test_enroots_file_is_looked_for_where_enroot_looks(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ENROOT_CONFIG_PATH")
    monkeypatch.setenv("HOME", str(home / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    assert credentials.enroots() == home / "home/.config/enroot/.credentials"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home))
    enroot(home, "machine nvcr.io login $oauthtoken password x")
    assert login("nvcr.io/x") == base64.b64encode(b"$oauthtoken:x").decode()


def test_what_docker_has_comes_before_what_enroot_has(home: Path) -> None:
    enroot(home, "machine quay.io login me password other")
    settings(home, auths={"quay.io": {"auth": LOGIN}})
    assert login("quay.io/x") == LOGIN


@pytest.mark.parametrize(
    ("password", "said"),
    [("$MY_TOKEN", "MY_TOKEN is not set"), (f"$(touch ran; echo {SECRET})", "kit runs no commands of that file")],
)
def test_a_password_that_kit_does_not_know_is_told(password: str, said: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    monkeypatch.delenv("MY_TOKEN", raising=False)
    enroot(home, f"machine 127.0.0.1 login me password {password}")
    with serving(private(LOGIN)) as server:
        assert f"; the password of 127.0.0.1 in {home}/enroot/.credentials is not known: {said})" in refused(server)
    assert not (home / "ran").exists()


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"machine", b"machine 127.0.0.1 login me", b"default login me password x", b"x" * (2 << 20)])
def test_a_file_that_is_none_of_enroots_is_no_login(content: bytes, home: Path) -> None:
    (home / "enroot/.credentials").write_bytes(content)
    with serving(private(LOGIN)) as server:
        assert "wants a login for" in refused(server)
