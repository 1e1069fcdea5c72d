"""The cluster profiles that come with the kit: valid, small, and each setting with its source."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from samples import ROOT

PROFILES = sorted((ROOT / "env").glob("*.yaml"))
SETS = {
    "generic": ({}, set()),
    "infiniband": ({}, {"#SBATCH --propagate=NONE"}),
    "ethernet": ({"NCCL_SOCKET_IFNAME": "'^lo,docker,virbr,br-,veth,cni'"}, set()),
    "efa": ({"FI_EFA_USE_HUGE_PAGE": "0", "NCCL_SOCKET_IFNAME": "en"}, {"#SBATCH --propagate=NONE"}),
}


@pytest.mark.parametrize("profile", PROFILES, ids=lambda path: path.stem)
def test_a_job_gets_what_the_profile_says_and_nothing_else(profile: Path, kit, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    plain, with_profile = (
        set(kit("submit", "train.py", "--cluster", name, "--name", "x", "--output", "run", "--dry-run").stdout.splitlines())
        for name in ("generic", profile.stem)
    )
    variables, options = SETS[profile.stem]
    assert with_profile - plain == {f"  {name}={value}" for name, value in variables.items()} | options


@pytest.mark.parametrize("profile", PROFILES, ids=lambda path: path.stem)
def test_every_setting_has_its_source_above_it(profile: Path) -> None:
    lines = profile.read_text().splitlines()
    settings = [number for number, line in enumerate(lines) if re.match(r"  [A-Za-z_]+: ", line)]
    assert len(settings) >= sum(map(len, SETS[profile.stem])), "not every setting was found"
    assert [lines[number] for number in settings if "https://" not in lines[number - 1]] == []


@pytest.mark.parametrize("folder", ["/", "//", ".", "~", "..", "a/../..", "~/"])
def test_kits_folder_on_a_login_node_cannot_be_the_home_or_above_it(folder: str, kit, tmp_path: Path) -> None:
    (tmp_path / "config/kit/clusters").mkdir(parents=True)
    (tmp_path / "config/kit/clusters/far.yaml").write_text(f'ssh: ada@far\nssh_dir: "{folder}"\n')
    (tmp_path / "train.py").touch()
    done = kit("submit", "train.py", "--cluster", "far", check=False, XDG_CONFIG_HOME=str(tmp_path / "config"))
    assert done.returncode == 2
    assert f"far.yaml:2: '{folder}' cannot be kit's folder there\n  fix: name a folder for kit alone" in done.stderr


@pytest.fixture
def sites(tmp_path: Path) -> dict[str, str]:
    """Variables by which a site's profiles are in a folder of their own, and the user's in another."""
    for name in ("site", "home"):
        (tmp_path / name / "kit/clusters").mkdir(parents=True)
    (tmp_path / "train.py").touch()
    return {"XDG_CONFIG_DIRS": f"/nowhere:{tmp_path}/site", "XDG_CONFIG_HOME": f"{tmp_path}/home"}


def profile_in(tmp_path: Path, place: str, name: str, text: str) -> None:
    (tmp_path / place / f"kit/clusters/{name}.yaml").write_text(text)


def test_a_sites_profile_serves_all_its_users_and_a_users_own_hides_it(kit, tmp_path: Path, sites: dict[str, str]) -> None:
    profile_in(tmp_path, "site", "ours", "slurm: {partition: sites}\n")
    shown = kit("submit", "train.py", "--cluster", "ours", "--dry-run", **sites).stdout
    assert "#SBATCH --partition=sites\n" in shown
    profile_in(tmp_path, "home", "ours", "slurm: {partition: mine}\n")
    assert "#SBATCH --partition=mine\n" in kit("submit", "train.py", "--cluster", "ours", "--dry-run", **sites).stdout


def test_a_sites_generic_profile_holds_for_jobs_that_name_none(kit, tmp_path: Path, sites: dict[str, str]) -> None:
    profile_in(tmp_path, "site", "generic", "slurm: {account: everybody}\n")
    assert "#SBATCH --account=everybody\n" in kit("submit", "train.py", "--dry-run", **sites).stdout


def test_the_profiles_are_listed_with_their_files_and_with_what_is_wrong_in_them(kit, tmp_path: Path, sites: dict[str, str]) -> None:
    profile_in(tmp_path, "site", "ours", "description: four racks\n")
    profile_in(tmp_path, "site", "hidden", "description: of the site\n")
    profile_in(tmp_path, "home", "hidden", "description: of the user\n")
    profile_in(tmp_path, "home", "wrong", "runtme: none\n")
    rows = {row[0]: row[1:] for row in (re.split(r"\s{2,}", line) for line in kit("init", "--list", **sites).stdout.splitlines())}
    assert rows["ours"] == ["four racks", f"{tmp_path}/site/kit/clusters/ours.yaml"]
    assert rows["hidden"] == ["of the user", f"{tmp_path}/home/kit/clusters/hidden.yaml"]
    assert rows["wrong"][0].endswith("wrong.yaml:1: unknown key 'runtme' in a cluster profile")
    assert set(SETS) < set(rows)
