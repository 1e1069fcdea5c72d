"""A cluster elsewhere, without one: a fake ssh and a fake Slurm (tests/fakes), and a fresh home below the tests' own folder.

kit removes folders on the far side, so nothing else of this machine can be written there: see tests/fakes/fake_ssh.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from kit.remote.landing import MARK

from samples import ROOT

FAKES = ROOT / "tests" / "fakes"
OF_SLURM = ("sbatch", "squeue", "scontrol", "scancel", "sinfo", "salloc")


def install(folder: Path, **names: str) -> None:
    """Puts fakes first: install(bin, ssh="fake_ssh")."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, fake in names.items():
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(FAKES / fake)


class Slurm:
    """The jobs of the fake Slurm in this folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "jobs").mkdir(parents=True, exist_ok=True)

    def job(self, job_id: str, state: str = "RUNNING", reason: str = "None", exit_code: str = "0:0", nodes: str = "node1", folder: str = "/x") -> None:
        new = self.folder / "jobs" / f".{job_id}"  # a name that squeue does not show
        new.write_text("\n".join([state, reason, exit_code, nodes, folder]) + "\n")
        new.replace(self.folder / "jobs" / job_id)

    def forget(self, job_id: str) -> None:
        (self.folder / "jobs" / job_id).unlink()

    def states(self) -> dict[str, str]:
        return {path.name: path.read_text().split("\n", 1)[0] for path in sorted((self.folder / "jobs").glob("[0-9]*"))}

    def calls(self, name: str) -> list[str]:
        """The arguments of each call of this command."""
        file = self.folder / "calls"
        lines = file.read_text().splitlines() if file.exists() else []
        return [line.partition(" ")[2] for line in lines if line.partition(" ")[0] == name]

    def says(self, name: str, text: str) -> None:
        """The next call of this command fails with these words."""
        (self.folder / f"{name}-says").write_text(text)

    def answers(self, yes: bool) -> None:
        if yes:
            (self.folder / "down").unlink()
        else:
            (self.folder / "down").touch()


class Far:
    """The far side: its home, its Slurm, and what becomes of the connection to it. `environment` is for whoever starts kit."""

    def __init__(self, base: Path, sockets: Path) -> None:
        self.base, self.home, self.state = base, base / "far/home", base / "ssh"
        for folder in (self.home, self.state, base / "config/kit/clusters"):
            folder.mkdir(parents=True, mode=0o700)
        (self.home / ".fake-far-home").touch()
        self.slurm = Slurm(self.home / ".slurm")
        self.kit = self.home / "kit"  # kit's own folder over there
        install(base / "bin", ssh="fake_ssh")
        install(base / "far/bin", **dict.fromkeys(OF_SLURM, "fake_slurm"))
        self.profile("far", "ssh: login\n")
        self.environment = {
            "PATH": f"{base / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(base / "home"),
            "XDG_CONFIG_HOME": str(base / "config"),
            "XDG_CACHE_HOME": str(base / "cache"),
            "XDG_RUNTIME_DIR": str(sockets),
            "XDG_STATE_HOME": str(base / "state"),
            "FAKE_FAR_HOME": str(self.home),
            "FAKE_FAR_BASE": str(base),
            "FAKE_FAR_PATH": os.pathsep.join([str(base / "far/bin"), os.path.dirname(sys.executable), "/usr/local/bin:/usr/bin:/bin"]),
            "FAKE_SSH_STATE": str(self.state),
        }
        if not shutil.which("bwrap"):
            self.environment["FAKE_FAR_UNCONFINED"] = os.environ.get("KIT_TEST_UNCONFINED", "") and str(self.home)
        (base / "home").mkdir()

    def profile(self, name: str, text: str) -> None:
        (self.base / "config/kit/clusters" / f"{name}.yaml").write_text(text)

    def own_kit(self) -> None:
        """Makes kit's own folder over there, with its mark."""
        self.kit.mkdir(mode=0o700, exist_ok=True)
        (self.kit / MARK).touch()

    def calls(self) -> list[str]:
        """`call`, `rsync` or `attach` for each command."""
        file = self.state / "calls"
        return file.read_text().split() if file.exists() else []

    def down(self, why: str = "No route to host") -> None:
        (self.state / "down").write_text(f"ssh: {why}\n")

    def up(self) -> None:
        (self.state / "down").unlink()

    def cut_next_after(self, count: int) -> None:
        """The connection of the next command breaks after so many bytes of its output."""
        (self.state / "cut").write_text(str(count))

    def lose_next_answer(self) -> None:
        (self.state / "lose").touch()
