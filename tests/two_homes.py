"""A laptop and a login node on this machine: two homes, and a real sshd on loopback between them.

kit removes and writes on both, so each side runs under bubblewrap: its processes see all of this machine read-only, but for their own
home. They are the user ada there, with that home in /etc/passwd, so ssh finds the configuration that a user would have in ~/.ssh.
"""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import kit_forks
from far_side import OF_SLURM, Slurm, install
from samples import ROOT

UID = 1000  # of ada, whoever tests
PATIENCE_S = 120  # for one command of kit
SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}{os.pathsep}/usr/sbin")
RUN = "/tmp/run"  # XDG_RUNTIME_DIR there: the paths of sockets may not be long


def lacks() -> str:
    """What is not installed here."""
    missing = [package for tool, package in (("bwrap", "bubblewrap"), ("rsync", "rsync"), ("ssh", "openssh-client")) if not shutil.which(tool)]
    missing += [] if SSHD else ["openssh-server"]
    return f"not installed: apt-get install {' '.join(missing)}" if missing else ""


class Done(NamedTuple):
    code: int
    out: str
    err: str


class Side:
    """A home, and what runs in it."""

    def __init__(self, base: Path) -> None:
        self.base, self.home, self.slurm = base, base / "home", Slurm(base / "slurm")
        self.home.mkdir(mode=0o700)
        self.path = os.pathsep.join([str(base / "bin"), os.path.dirname(sys.executable), "/usr/local/bin:/usr/bin:/bin"])
        (base / "bin").mkdir()
        (base / "passwd").write_text(f"ada:x:{UID}:{UID}::{self.home}:/bin/bash\n")

    def give_slurm(self) -> None:
        install(self.base / "bin", **dict.fromkeys(OF_SLURM, "fake_slurm"))

    def confined(self, *command: str) -> list[str]:
        """A command that can write to this side alone, and to a /tmp of its own, which is empty."""
        seen = [word for place in (str(ROOT), sys.prefix) for word in ("--ro-bind", place, place)]
        own = ["--bind", str(self.base), str(self.base), "--ro-bind", str(self.base / "passwd"), "/etc/passwd", "--dir", RUN]
        user = ["--unshare-user", "--uid", str(UID), "--gid", str(UID), "--unshare-pid", "--die-with-parent"]
        return ["bwrap", *user, "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp", *seen, *own, "--", *command]


@contextmanager
def _until_the_end(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """bwrap takes all that it has started along."""
    try:
        yield
    finally:
        process.kill()
        process.wait()


class LoginNode(Side):
    """The side that sshd is on."""

    def __init__(self, base: Path) -> None:
        super().__init__(base)
        self.give_slurm()
        self.keys = base / "sshd"
        self.keys.mkdir(mode=0o700)
        for name in ("host", "ada"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(self.keys / name)], check=True)

    @contextmanager
    def serving(self) -> Iterator[None]:
        """With an sshd on loopback."""
        with _until_the_end(self._start()):
            yield

    def _start(self) -> subprocess.Popen[bytes]:
        """On a port that was free a moment ago."""
        for _ in range(10):
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                self.port = probe.getsockname()[1]
            (self.keys / "config").write_text(self._config())
            log = self.keys / "log"
            with log.open("wb") as file:
                process = subprocess.Popen(self.confined(str(SSHD), "-D", "-e", "-f", str(self.keys / "config")), stdin=subprocess.DEVNULL, stderr=file)
            while process.poll() is None:
                if "Server listening" in log.read_text():
                    return process
                time.sleep(0.01)
        raise AssertionError(f"sshd does not start: {log.read_text()}")

    def _config(self) -> str:
        own = {"FAKE_SLURM": self.slurm.folder, "LANG": "C.UTF-8", "PATH": self.path, "TMPDIR": RUN}
        lines = {
            "ListenAddress": f"127.0.0.1:{self.port}",
            "HostKey": self.keys / "host",
            "AuthorizedKeysFile": self.keys / "ada.pub",
            "PidFile": "none",
            "StrictModes": "no",  # the folders above are not ada's
            "UsePAM": "no",
            "PasswordAuthentication": "no",
            "KbdInteractiveAuthentication": "no",
            "SetEnv": " ".join(f'"{name}={value}"' for name, value in own.items()),
        }
        return "".join(f"{name} {value}\n" for name, value in lines.items())

    def let_in(self, laptop: Side) -> None:
        """Writes what a user of the alias `login` has in ~/.ssh."""
        folder = laptop.home / ".ssh"
        folder.mkdir(mode=0o700)
        shutil.copy(self.keys / "ada", folder / "id_ada")
        (folder / "known_hosts").write_text(f"[127.0.0.1]:{self.port} {(self.keys / 'host.pub').read_text()}")
        options = {"HostName": "127.0.0.1", "Port": self.port, "User": "ada", "IdentityFile": "~/.ssh/id_ada", "IdentitiesOnly": "yes"}
        lines = [f"  {name} {value}\n" for name, value in {**options, "StrictHostKeyChecking": "yes", "UpdateHostKeys": "no"}.items()]
        (folder / "config").write_text(f"Host login\n{''.join(lines)}")


class Laptop(Side):
    """The side that kit is called on: one Python that has kit loaded, and forks for each command."""

    @contextmanager
    def serving(self) -> Iterator[None]:
        """With the Python that calls kit."""
        own = {"HOME": str(self.home), "PATH": self.path, "LANG": "C.UTF-8", "XDG_RUNTIME_DIR": RUN, "FAKE_SLURM": str(self.slurm.folder)}
        passed = {name: value for name, value in os.environ.items() if name.startswith(("PYTHON", "COVERAGE"))}
        command = self.confined(sys.executable, str(Path(__file__).resolve()))
        self._process = subprocess.Popen(command, env={**passed, **own}, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        with _until_the_end(self._process):
            yield

    def kit(self, *words: str, folder: Path) -> Done:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps([str(folder), *words]).encode() + b"\n")
        self._process.stdin.flush()
        return Done(*json.loads(self._process.stdout.readline()))


# ---------------------------------------------------------------- on the laptop


def _serve() -> None:
    """Answers each line of the input, a folder and the words of a command, by how the command ended and what it said."""
    kit_forks.load()
    from kit.remote import install

    install._files = functools.cache(install._files)  # it starts a Python
    install._files()
    fork = multiprocessing.get_context("fork")
    for line in sys.stdin.buffer:
        folder, *words = json.loads(line)
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            process = fork.Process(target=_call, args=(folder, words, out.fileno(), err.fileno()))
            process.start()
            process.join(PATIENCE_S)
            if process.is_alive():
                process.kill()
                process.join()
            said = [file.seek(0) or file.read().decode("utf-8", "replace") for file in (out, err)]
        print(json.dumps([process.exitcode, *said]), flush=True)


def _call(folder: str, words: list[str], *streams: int) -> None:
    from kit.cli import entry

    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, handle in enumerate((nothing, *streams)):
        os.dup2(handle, number)
    sys.stdin = os.fdopen(0)
    os.chdir(folder)
    sys.argv = ["kit", *words]
    entry.main()


if __name__ == "__main__":
    _serve()
