"""The cluster profiles that come with the kit: valid, small, and each setting with its source."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from kit.cluster.init import init

from samples import ROOT

PROFILES = sorted((ROOT / "env").glob("*.yaml"))
SETS = {
    "generic": ({}, set()),
    "infiniband": ({}, {"#SBATCH --propagate=NONE"}),
    "ethernet": ({"NCCL_SOCKET_IFNAME": "'^lo,docker,virbr,br-,veth,cni'"}, set()),
    "slingshot": (
        {
            "NCCL_SOCKET_IFNAME": "hsn",
            "FI_CXI_DISABLE_HOST_REGISTER": "1",
            "FI_MR_CACHE_MONITOR": "userfaultfd",
            "FI_CXI_DEFAULT_CQ_SIZE": "131072",
            "NCCL_NET_GDR_LEVEL": "PHB",
        },
        {"#SBATCH --propagate=NONE"},
    ),
    "efa": ({"FI_EFA_USE_HUGE_PAGE": "0", "NCCL_SOCKET_IFNAME": "en"}, {"#SBATCH --propagate=NONE"}),
    "gcp": (
        {
            "NCCL_SOCKET_IFNAME": "enp0s12",
            "NCCL_FASTRAK_CTRL_DEV": "enp0s12",
            "NCCL_FASTRAK_IFNAME": "'enp6s0,enp7s0,enp13s0,enp14s0,enp134s0,enp135s0,enp141s0,enp142s0'",
            "NCCL_FASTRAK_LLCM_DEVICE_DIRECTORY": "/dev/aperture_devices",
        },
        {"#SBATCH --propagate=NONE"},
    ),
    "azure": (
        {"NCCL_SOCKET_IFNAME": "eth0", "NCCL_IB_PCI_RELAXED_ORDERING": "1", "NCCL_IGNORE_CPU_AFFINITY": "1"},
        {"#SBATCH --propagate=NONE"},
    ),
    "omni-path": ({}, {"#SBATCH --propagate=NONE"}),
    "gb200": ({}, {"#SBATCH --propagate=NONE"}),
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


@pytest.mark.parametrize("folder", ["/", "//", ".", "~", "..", "a/../..", "~/", "$WORK/kit", "${WORK}", "~ada/kit"])
def test_kits_folder_on_a_login_node_is_named_by_its_path_and_not_the_home_or_above_it(folder: str, kit, tmp_path: Path) -> None:
    (tmp_path / "config/kit/clusters").mkdir(parents=True)
    (tmp_path / "config/kit/clusters/far.yaml").write_text(f'ssh: ada@far\nssh_dir: "{folder}"\n')
    (tmp_path / "train.py").touch()
    done = kit("submit", "train.py", "--cluster", "far", check=False, XDG_CONFIG_HOME=str(tmp_path / "config"))
    assert done.returncode == 2
    assert f"far.yaml:2: '{folder}' cannot be kit's folder there\n  fix: name a folder only for kit" in done.stderr


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


def test_a_profile_that_is_no_mapping_is_told_how_a_profile_begins(kit, tmp_path: Path, sites: dict[str, str]) -> None:
    profile_in(tmp_path, "home", "ours", "- scratch: /local\n")
    done = kit("submit", "train.py", "--cluster", "ours", "--dry-run", check=False, **sites)
    assert done.stderr == f"kit: {tmp_path}/home/kit/clusters/ours.yaml:1: expected `key: value` lines\n  fix: start with `description: our cluster`\n"


def test_a_variable_in_a_value_of_a_profile_is_told_from_one_that_is_not_set(kit, tmp_path: Path, sites: dict[str, str]) -> None:
    profile_in(tmp_path, "home", "ours", 'env: {DATA: "$HOME/data"}\n')
    for path in ("$DATA", "${DATA}/x"):
        (tmp_path / "job.yaml").write_text(f"command: train.py\ncluster: ours\nworkdir: {path}\n")
        done = kit("submit", "job.yaml", "--dry-run", check=False, HOME=str(tmp_path), **sites)
        said = f"kit: job.yaml:3: no such folder: {tmp_path}/$HOME/data{path[7:]}\n  fix: write the path out where another variable has $HOME in its value, "
        assert done.returncode == 2 and done.stderr.startswith(said), done.stderr
    assert "ours.yaml:1: warning: DATA gets '$HOME' as it stands" in done.stderr


def test_the_profiles_are_listed_with_their_files_and_with_what_is_wrong_in_them(kit, tmp_path: Path, sites: dict[str, str]) -> None:
    profile_in(tmp_path, "site", "ours", "description: four racks\n")
    profile_in(tmp_path, "site", "hidden", "description: of the site\n")
    profile_in(tmp_path, "home", "hidden", "description: of the user\n")
    profile_in(tmp_path, "home", "far", "description: elsewhere\nssh: login\nscratch: $OF_THE_LOGIN_NODE/x\n")
    profile_in(tmp_path, "home", "wrong", "runtme: none\nscratch: local\n")
    rows = {row[0]: row[1:] for row in (re.split(r"\s{2,}", line) for line in kit("init", "--list", **sites).stdout.splitlines())}
    assert rows["ours"] == ["four racks", f"{tmp_path}/site/kit/clusters/ours.yaml"]
    assert rows["hidden"] == ["of the user", f"{tmp_path}/home/kit/clusters/hidden.yaml (hides {tmp_path}/site/kit/clusters/hidden.yaml)"]
    assert rows["far"][0] == "elsewhere"
    wrong = f"{tmp_path}/home/kit/clusters/wrong.yaml"
    problems = f"{wrong}:1: unknown key 'runtme' in a cluster profile; {wrong}:2: scratch must be an absolute path"
    assert rows["wrong"] == [f"not to be used: {problems}", wrong]
    assert set(SETS) < set(rows)


def test_a_profile_hides_neither_kits_own_nor_a_link_to_itself(kit, tmp_path: Path, sites: dict[str, str]) -> None:
    profile_in(tmp_path, "site", "generic", "description: of the site\n")
    profile_in(tmp_path, "site", "linked", "description: of the site\n")
    (tmp_path / "home/kit/clusters/linked.yaml").symlink_to(tmp_path / "site/kit/clusters/linked.yaml")
    assert "(hides " not in kit("init", "--list", **sites).stdout


@pytest.fixture
def bound_kit(tmp_path: Path):
    """kit with the rights that modes give to an ordinary user: without those that root has beside them."""
    prefix = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"] if os.getuid() == 0 else []

    def call(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        command = [*prefix, sys.executable, "-m", "kit", *arguments]
        env = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), **environment}
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)

    return call


@pytest.mark.parametrize("closed", ["site/kit/clusters", "site/kit"])
@pytest.mark.parametrize("words", ["--cluster ours", ""])
def test_a_folder_that_may_not_be_entered_is_named_and_no_job_goes_without_its_profiles(
    closed: str, words: str, bound_kit, tmp_path: Path, sites: dict[str, str]
) -> None:
    profile_in(tmp_path, "site", "ours", "slurm: {account: everybody}\n")
    (tmp_path / closed).chmod(0o600)
    done = bound_kit("submit", "train.py", *words.split(), "--dry-run", **sites)
    (tmp_path / closed).chmod(0o700)
    folder = f"{tmp_path}/site/kit/clusters"
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"kit: {folder}: cannot be read: Permission denied\n  fix: kit looks for profiles there: have it opened, or the folder above it: namei -l {folder}\n"
    )


def test_a_users_own_profile_is_found_before_a_closed_folder(bound_kit, tmp_path: Path, sites: dict[str, str]) -> None:
    profile_in(tmp_path, "home", "generic", "slurm: {account: mine}\n")
    (tmp_path / "site/kit").chmod(0)
    done = bound_kit("submit", "train.py", "--dry-run", **sites)
    (tmp_path / "site/kit").chmod(0o700)
    assert done.returncode == 0 and "#SBATCH --account=mine\n" in done.stdout


@pytest.mark.parametrize("mode", [0o000, 0o300, 0o600])
def test_the_list_of_profiles_names_a_folder_that_cannot_be_listed(mode: int, bound_kit, tmp_path: Path, sites: dict[str, str]) -> None:
    profile_in(tmp_path, "site", "ours", "description: four racks\n")
    profile_in(tmp_path, "home", "mine", "description: my own\n")
    folder = tmp_path / "site/kit/clusters"
    folder.chmod(mode)
    done = bound_kit("init", "--list", **sites)
    folder.chmod(0o700)
    assert done.returncode == 0 and "my own" in done.stdout
    assert f"kit: {folder}: warning: cannot be read: Permission denied\n  fix: " in done.stderr


@pytest.mark.parametrize(
    ("scratch", "named"),
    [
        ("/local/$SLURM_JOB_ID", "$SLURM_JOB_ID"),
        ("/local/${NOBODY_SET_THIS}/x", "$NOBODY_SET_THIS"),
        ("$TMPDIR", "$TMPDIR"),
        ("${XDG_RUNTIME_DIR}/x", "$XDG_RUNTIME_DIR"),
        ("/a/$TMPDIR/$NOBODY_SET_THIS", "$TMPDIR and $NOBODY_SET_THIS"),
        ("/local/$(hostname)", "'$(hostname)'"),
    ],
)
@pytest.mark.parametrize("value", ["", "/of/the/login/node"])
def test_scratch_takes_no_variable_whose_value_on_the_nodes_is_not_known(
    scratch: str, named: str, value: str, kit, tmp_path: Path, sites: dict[str, str]
) -> None:
    profile_in(tmp_path, "site", "generic", f"runtime: none\nscratch: {scratch}\n")
    done = kit("submit", "train.py", "--dry-run", check=False, TMPDIR=value, XDG_RUNTIME_DIR=value, SLURM_JOB_ID="7", **sites)
    assert done.returncode == 2
    assert done.stderr == (
        f"kit: {tmp_path}/site/kit/clusters/generic.yaml:2: the value of {named} on the nodes is not known: "
        "the variables of scratch are read at submission, on the login node\n"
        "  fix: write the path that the nodes have: `scratch: /local`; kit makes kit-UID in it\n"
    )


def test_scratch_gets_the_values_that_its_variables_have_at_submission(kit, tmp_path: Path, sites: dict[str, str]) -> None:
    profile_in(tmp_path, "site", "generic", "scratch: /local/$WHO/${PLACE}\n")
    assert "\nKIT_SCRATCH=/local/ada/x\n" in kit("submit", "train.py", "--dry-run", WHO="ada", PLACE="x", **sites).stdout


def test_a_job_has_the_mounts_of_its_profile_and_its_own_win_by_their_target(kit, tmp_path: Path, sites: dict[str, str]) -> None:
    (tmp_path / "x.sif").touch()
    lines = "['/usr:/data:ro', '$WHERE/share:/x', {source: /of/the/nodes, on_nodes: true}]"
    profile_in(tmp_path, "site", "generic", f"runtime: apptainer\nmounts: {lines}\n")
    script = kit("submit", "train.py", "--dry-run", "--mount", "/var:/x", "--image", "x.sif", WHERE="/usr", **sites).stdout
    shown = re.search(r"^KIT_MOUNTS=\(\n(.*?)^\)$", script, re.MULTILINE | re.DOTALL)
    assert shown and shown[1].splitlines()[:2] == ["  /usr /data ro", "  /var /x rw"]
    assert "  /of/the/nodes /of/the/nodes rw\n" in shown[1] and "/usr/share" not in script


def test_the_mounts_of_a_profile_are_nothing_to_a_job_without_a_container(kit, tmp_path: Path, sites: dict[str, str]) -> None:
    profile_in(tmp_path, "site", "generic", "runtime: apptainer\nmounts: [/nowhere/data:/data]\n")
    assert "/nowhere" not in kit("submit", "train.py", "--runtime", "none", "--dry-run", **sites).stdout


@pytest.mark.parametrize(
    ("mount", "code", "problem"),
    [
        ("/nowhere/data:/data", 0, "warning: not on this machine: /nowhere/data, which the job mounts"),
        ("$NOBODY_SET_THIS/a:/a", 2, "'$NOBODY_SET_THIS' has no value here: the variables of mounts are read at submission"),
        ("/data:a", 2, "the mount target 'a' is not an absolute path"),
    ],
)
def test_a_mount_of_a_profile_that_cannot_be_is_told_once_with_its_line(
    mount: str, code: int, problem: str, kit, tmp_path: Path, sites: dict[str, str]
) -> None:
    (tmp_path / "x.sif").touch()
    profile_in(tmp_path, "site", "generic", f"runtime: apptainer\nmounts:\n- /usr\n- {mount}\n")
    done = kit("render", "train.py", "--image", "x.sif", check=False, **sites)
    file = f"{tmp_path}/site/kit/clusters/generic.yaml"
    told = [line for line in done.stderr.splitlines() if line.startswith(f"kit: {file}")]
    assert (done.returncode, told) == (code, [f"kit: {file}:4: {problem}"])


def test_a_profile_may_end_in_yml_as_a_job_file_may(kit, tmp_path: Path) -> None:
    folder = tmp_path / "home/kit/clusters"
    folder.mkdir(parents=True)
    (folder / "generic.yml").write_text("slurm: {partition: gpu}\n")
    (folder / "lab.yml").write_text("slurm: {partition: hidden}\n")
    (folder / "lab.yaml").write_text("slurm: {partition: lab}\n")
    shell = {"XDG_CONFIG_HOME": f"{tmp_path}/home", "XDG_CONFIG_DIRS": "/nowhere"}
    (tmp_path / "train.py").touch()
    command = ("submit", "train.py", "--runtime", "none", "--dry-run")
    assert "#SBATCH --partition=gpu\n" in kit(*command, **shell).stdout
    assert "#SBATCH --partition=lab\n" in kit(*command, "--cluster", "lab", **shell).stdout
    listed = kit("init", "--list", **shell).stdout  # a TMPDIR may have spaces
    for name, file in (("generic", "generic.yml"), ("lab", "lab.yaml")):
        assert re.search(rf"(?m)^{name} +{re.escape(str(folder / file))}( |$)", listed)


def test_kit_init_writes_no_second_profile_beside_one_that_ends_in_yml(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("KIT_CLUSTERS", str(tmp_path))
    start = SimpleNamespace(chosen=SimpleNamespace(profile="lab"))
    assert init.Start.profile.fget(start) == tmp_path / "lab.yaml"  # type: ignore[attr-defined]
    (tmp_path / "lab.yml").write_text("slurm: {account: mine}\n")
    assert init.Start.profile.fget(start) == tmp_path / "lab.yml"  # type: ignore[attr-defined]
