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
