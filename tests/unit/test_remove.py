"""kit and its scripts remove only what kit made, each in one place."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from kit.base.errors import KitError
from kit.files import remove

from samples import ROOT

NOBODY = 65534
NAME = r"kit-[0-9a-f]{4}"
PYTHON = """
import sys
from pathlib import Path
from kit.files import remove
from kit.base.errors import KitError

for path in sys.argv[2:]:
    try:
        remove.tree(Path(path), sys.argv[1] if Path(path) != Path("/") else "")
    except (KitError, OSError):
        pass
"""
BASH = """
set -uo pipefail
source "${KIT_RUN_DIR}/lib/remove.sh"
name="$1"
shift
for path in "$@"; do
  remove::tree "${path}" "${name}"
done
"""
COMMANDS = {"Python": [sys.executable, "-c", PYTHON], "bash": ["bash", "-c", BASH, "remove"]}


@pytest.mark.parametrize("language", COMMANDS)
def test_only_folders_of_kits_own_are_removed(language: str, tmp_path: Path) -> None:
    """All of the file system but one folder is read-only here: what fails must hit nothing."""
    tmp_path /= "a blank 36\\134 before digits"  # is \\040 in the kernel's list of mounts
    mounted, holds_mount, linked, others, home, plain, file = (tmp_path / f"kit-000{number}" for number in range(7))
    names = [tmp_path / name for name in ("kit-0007x", "xkit-0008", "kit-0009\nx", "mine")]
    for folder in (mounted, holds_mount, others, home, plain, *names, tmp_path / "target"):
        (folder / "deep/er").mkdir(parents=True)
        (folder / "deep/er/file").write_text("x")
    linked.symlink_to(tmp_path / "target")
    file.write_text("x")
    (plain / "out").symlink_to(tmp_path / "target")
    if os.getuid() == 0:
        os.chown(others, NOBODY, NOBODY)
    paths = [Path("/"), mounted, holds_mount, linked, home, *([others] if os.getuid() == 0 else []), *names, plain, file, tmp_path / "kit-abcd"]
    binds = [word for path in (tmp_path, mounted, holds_mount / "deep") for word in ("--bind", str(path), str(path))]
    jail = ["bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", *binds]
    env = {**os.environ, "HOME": str(home), "KIT_RUN_DIR": str(ROOT / "launch/scripts"), "PYTHONPATH": str(ROOT / "launch")}
    done = subprocess.run([*jail, *COMMANDS[language], NAME, *map(str, paths)], env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) in ((0, ""), (1, "")), done.stderr
    stay = {mounted, holds_mount, linked, others, home, *names}
    assert {path for path in (*stay, plain, file) if path.is_symlink() or path.exists()} == stay
    for folder in (stay - {linked}) | {tmp_path / "target"}:
        assert (folder / "deep/er/file").read_text() == "x"


@pytest.mark.parametrize("language", COMMANDS)
def test_what_nobody_may_write_to_is_removed_and_another_folder_keeps_its_mode(language: str, tmp_path: Path) -> None:
    own, other = tmp_path / "kit-0001", tmp_path / "mine"
    for folder in (own, other):
        (folder / "inner").mkdir(parents=True)
        (folder / "inner" / "file").touch()
        (folder / "inner").chmod(0o555)
    # Root may write to any; root without its powers may not.
    shown = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.getuid() == 0 else []
    env = {**os.environ, "KIT_RUN_DIR": str(ROOT / "launch/scripts"), "PYTHONPATH": str(ROOT / "launch")}
    command = [word.replace("remove.tree", "remove.closed_tree") for word in COMMANDS[language]]
    subprocess.run([*shown, *command, NAME, str(own), str(other)], env=env, check=False, timeout=60)
    assert not own.exists()
    assert (other / "inner").stat().st_mode & 0o777 == 0o555


def test_a_link_that_takes_the_place_of_a_closed_folder_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who shares images/ may rename what is in it, at any moment: here when it is known that it may be removed."""
    own, mine = tmp_path / "kit-0001", tmp_path / "mine"
    own.mkdir()
    (mine / "inner").mkdir(parents=True)
    for folder in (mine, mine / "inner"):
        folder.chmod(0o750)
    check = remove.check

    def check_and_lose(path: Path, name: str, mark: str) -> None:
        check(path, name, mark)
        if not own.is_symlink():
            own.rename(tmp_path / "away")
            own.symlink_to(mine)

    monkeypatch.setattr(remove, "check", check_and_lose)
    with pytest.raises(KitError, match="it is a link"):
        remove.closed_tree(own, NAME)
    assert [folder.stat().st_mode & 0o777 for folder in (mine, mine / "inner")] == [0o750, 0o750]


def test_what_lacks_kits_mark_stays(tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; from kit.files import remove; remove.tree(Path(sys.argv[1]), '.+', 'mark')"
    jail = ["bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--bind", str(tmp_path), str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "launch")}
    for kind in ("none", "folder", "link", "file"):
        folder = tmp_path / kind
        folder.mkdir()
        if kind == "folder":
            (folder / "mark").mkdir()
        elif kind == "link":
            (folder / "mark").symlink_to("/etc/passwd")
        elif kind == "file":
            (folder / "mark").touch()
        done = subprocess.run([*jail, sys.executable, "-c", code, str(folder)], env=env, capture_output=True, text=True, timeout=60)
        assert folder.exists() == (kind != "file")
        assert ("kit did not make it" in done.stderr) == (kind != "file"), done.stderr


REMOVING = re.compile(r"rmtree|\brm -[a-z]*[rR]|\brm --recursive|-exec(dir)? rm|(?<!irreversible)-delete\b")
# Everything else goes through the two functions that are tried above.
ALLOWED = {
    "launch/kit/files/remove.py": 1,
    "launch/scripts/lib/remove.sh": 1,
    # Rsync, into a folder that login::make_marked has just made over there, or found with kit's mark.
    "launch/kit/remote/context.py": 2,
}


def test_nothing_else_in_kit_removes_a_folder() -> None:
    found = {}
    for path in sorted((ROOT / "launch").rglob("*")):
        if path.is_file() and path.suffix in (".py", ".sh", "") and "egg-info" not in str(path):
            lines = [line for line in path.read_text(errors="replace").splitlines() if REMOVING.search(line.split("#")[0])]
            if lines:
                found[str(path.relative_to(ROOT))] = len(lines)
    assert found == ALLOWED
