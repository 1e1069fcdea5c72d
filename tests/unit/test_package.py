"""The distribution: what is in the wheel, and that it works outside the checkout."""

from __future__ import annotations

import email
import importlib.util
import os
import re
import shlex
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
import yaml

from samples import ROOT

pytestmark = pytest.mark.slow

PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
SHIPPED = ("Dockerfile", "containers", "env", "launch/scripts", "train")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    # With the build backend that is here; where there is none, pip takes it from the package index.
    here = ["--no-build-isolation", "--no-index"] if importlib.util.find_spec("hatchling") else []
    subprocess.run([*PIP, "wheel", "--quiet", "--no-deps", *here, "--wheel-dir", folder, ROOT], check=True)
    (path,) = folder.glob("slurm_container_kit-*.whl")
    return path


def tracked(folder: str) -> set[str]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", folder], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    return {name for name in listed.splitlines() if (ROOT / name).exists()}


def test_the_wheel_holds_the_same_files_as_git_and_no_other(wheel: Path) -> None:
    expected = {f"kit/{Path(name).relative_to('launch/kit')}" for name in tracked("launch/kit")}
    for folder in SHIPPED:
        expected |= {f"kit/_assets/{name}" for name in tracked(folder)}
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert held == expected


def test_git_of_windows_checks_the_scripts_out_as_they_are(tmp_path: Path) -> None:
    """It has core.autocrlf=true: under WSL each script of such a checkout would end its lines in CRLF."""
    own, theirs = tmp_path / "own", tmp_path / "theirs"
    own.mkdir()
    for name in (".gitattributes", "launch/scripts/local/srun"):
        (own / Path(name).name).write_bytes((ROOT / name).read_bytes())
    identity = ["-c", "user.name=ada", "-c", "user.email=ada@example.org", "-c", "commit.gpgsign=false"]
    for command in (["init", "--quiet"], ["add", "."], [*identity, "commit", "--quiet", "--message", "x"]):
        subprocess.run(["git", *command], cwd=own, check=True)
    subprocess.run(["git", "clone", "--quiet", "-c", "core.autocrlf=true", own, theirs], check=True)
    assert b"\r" not in (theirs / "srun").read_bytes()


def test_nothing_generic_lands_in_site_packages(wheel: Path) -> None:
    tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"kit"}


@pytest.mark.parametrize("tool", ["uv", "pipx", "python3"])
def test_each_line_of_the_readme_installs_kit_from_a_checkout(tool: str, tmp_path: Path) -> None:
    (line,) = re.findall(rf"^{tool} [^#\n]*(?:install \.)", (ROOT / "README.md").read_text(), re.MULTILINE)
    home = {name: str(tmp_path / name) for name in ("HOME", "XDG_BIN_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "UV_CACHE_DIR", "PIPX_HOME", "PIPX_BIN_DIR")}
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "XDG_", "UV_", "PIPX_"))}
    done = subprocess.run(["bash", "-c", line], cwd=ROOT, env={**clean, **home, "PIP_NO_COMPILE": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (kit,) = {path.resolve() for path in tmp_path.rglob("bin/kit")}
    assert subprocess.run([kit, "--version"], cwd=tmp_path, env={**clean, **home}, capture_output=True, text=True, check=True).stdout
    assert all(os.access(kit.parent / tool, os.X_OK) for tool in ("py-spy", "shfmt"))  # for kit hang, kit import


def test_kit_installs_and_starts_ranks_where_there_is_no_network(tmp_path: Path) -> None:
    fetch, install = re.findall(r"(?<=pip )(?:wheel|install) [^#\n]*", (ROOT / "docs/air-gap.md").read_text())
    subprocess.run([*PIP, *fetch.replace("/path/to/kit", str(ROOT)).split(), "--quiet"], cwd=tmp_path, check=True)
    (tmp_path / "hello.sh").write_text("""#!/bin/bash\nawk 'NR > 2 { print "interface", $1 }' /proc/net/dev; echo "rank ${RANK} of ${WORLD_SIZE}"\n""")
    (tmp_path / "hello.sh").chmod(0o755)
    there = f"""
    set -e
    {sys.executable} -m venv --without-pip there && {shlex.join(PIP)} --python there/bin/python {install} --quiet
    there/bin/kit run ./hello.sh -j 2x1 --launcher srun
    """
    jail = ["bwrap", "--unshare-net", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--bind", str(tmp_path), str(tmp_path)]
    done = subprocess.run(
        [*jail, "bash", "-c", there], cwd=tmp_path, env={**os.environ, "HOME": str(tmp_path), "PIP_NO_COMPILE": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert set(re.findall(r"rank \d of 2", done.stdout)) == {"rank 0 of 2", "rank 1 of 2"}
    assert set(re.findall(r"interface (\S+):", done.stdout)) == {"lo"}


def test_the_wheel_says_which_packages_kit_needs(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        said = email.message_from_bytes(archive.read(name))
    needed = [re.split(r"[<>=; ]", line)[0] for line in said.get_all("Requires-Dist") or [] if "extra ==" not in line]
    assert sorted(needed) == ["py-spy", "pyyaml", "rich", "shfmt-py", "typer"] and said["Requires-Python"] == ">=3.9"


def test_the_citation_is_of_this_version_and_its_metadata_are_those_of_the_package(wheel: Path) -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        said = email.message_from_bytes(archive.read(name))
    assert (cited["cff-version"], cited["type"]) == ("1.2.0", "software")
    assert (cited["version"], cited["license"]) == (said["Version"], said["License-Expression"])
    assert [author["name"] for author in cited["authors"]] == [said["Author"]]
    assert said["Keywords"] and "Typing :: Typed" in said.get_all("Classifier")


def test_an_installed_kit_works_outside_the_checkout_and_ships_its_scripts(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv/bin/python"
    subprocess.run([*PIP, "--python", python, "install", "--quiet", "--no-index", "--no-deps", wheel], check=True)
    # The packages that kit needs are those of the tests. A path alone: the checkout's own kit, which is installed there by
    # another file, is not seen.
    (site_packages,) = (tmp_path / "venv/lib").glob("python3*/site-packages")
    (site_packages / "others.pth").write_text("\n".join(sysconfig.get_path(name) for name in ("purelib", "platlib")) + "\n")
    (tmp_path / "train.py").write_text("")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    origin = subprocess.run([python, "-c", "import kit; print(kit.__file__)"], cwd=tmp_path, env=clean, capture_output=True, text=True, check=True)
    assert origin.stdout.startswith(f"{site_packages}/kit/")
    subprocess.run([tmp_path / "venv/bin/kit", "render", "train.py", "-j", "2x2", "--output", "out"], cwd=tmp_path, env=clean, check=True)
    here = subprocess.run([sys.executable, "-m", "kit", "render", "train.py", "-j", "2x2", "--output", "out2"], cwd=tmp_path, check=True)
    assert here.returncode == 0
    stand_ins = list((tmp_path / "venv").rglob("_assets/launch/scripts/local/*"))
    assert {stand_in.name for stand_in in stand_ins} == {"srun", "scontrol", "sbcast"}
    assert [stand_in for stand_in in stand_ins if not os.access(stand_in, os.X_OK)] == []
    for name in ("run_script.sh", "torchrun.sh"):
        assert (tmp_path / "out" / name).read_text().replace("/out", "/out2") == (tmp_path / "out2" / name).read_text()
