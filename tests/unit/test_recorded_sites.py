"""`kit init`: what it makes of recorded sites, to the byte, and that it spoils nothing. Slurm's commands are stand-ins that print what real ones did."""

from __future__ import annotations

import hashlib
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from kit.base.errors import KitError, Problems, UsageError
from kit.cli import first_job
from kit.cluster import probe
from kit.cluster.facts import Kind, Partition
from kit.cluster.init import init as its
from kit.cluster.init import shape, survey
from kit.config.profiles import load

from samples import HOSTILE_NAME, ROOT

SITES = Path(__file__).parent / "sites"
STAND_IN = """\
#!/bin/bash
cd '{site}' || exit 1
[[ "$*" =~ cluster=([^ ]+) ]] && of="${{BASH_REMATCH[1]}}" || of='[^|]*'
case "${{0##*/}} $*" in
  "scontrol show config") file=config ;;
  "scontrol --all --oneliner show partition") file=partitions ;;
  "scontrol --all --oneliner show node "*) file=show-node ;;
  "scontrol show hostnames "*) echo "${{3}}" && exit ;;
  "sinfo --noheader --Node "*) file=nodes ;;
  "sinfo "*) file=kinds ;;
  "sacctmgr "*associations*) sed -n "s/^${{of}}|//p" associations && exit ;;
  "sacctmgr "*) grep "^${{of}}|" user && exit ;;
  "srun --help") file=help ;;
  "srun "*) file=node && printf '%s\\n' "$*" >>asked ;;
  "sbatch "*) cat estimate >&2 && exit ;;
esac
cat "${{file}}"
"""


pytestmark = pytest.mark.tame


@pytest.fixture(autouse=True)
def another_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the user's own home is read."""
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))


@pytest.fixture
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """slurm(SITE) is a folder with a site's answers, to be changed, and its commands in `bin`."""

    def make(name: str) -> Path:
        site = tmp_path_factory.mktemp(name)
        (site / "bin").mkdir()
        for file in (SITES / name).iterdir():
            if file.is_file():
                (site / file.name).write_text(file.read_text())
        for command in ("scontrol", "sinfo", "sacctmgr", "srun", "sbatch") if name != "laptop" else ():
            (site / "bin" / command).write_text(STAND_IN.format(site=site))
            (site / "bin" / command).chmod(0o755)
        return site

    return make


@pytest.fixture
def init(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """init(site) is what kit init says there, in the folder tmp_path/project; the profile is below tmp_path/config."""
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))

    def call(site: Path, **options: object) -> str:
        for name in ("look", "node"):
            if (site / name).exists():
                (site / name).write_text((site / name).read_text().replace("PROJECT", str(project)))
        monkeypatch.setenv("PATH", f"{site}/bin:/usr/bin:/bin")
        monkeypatch.setattr(probe, "here", lambda command: probe.read((site / "look").read_text()))
        first_job.write(**{"target": project, "image": None, "partition": None, "local": False, "ask_node": True, "force": False, **options})  # type: ignore[arg-type]
        return capsys.readouterr().out.replace(str(tmp_path), "TMP")

    return call


def files(tmp_path: Path) -> dict[str, str]:
    found = {path.name: path for path in (tmp_path / "config/kit/clusters").glob("*.yaml")} | {"job.yaml": tmp_path / "project/job.yaml"}
    return {name: path.read_text().replace(str(tmp_path), "TMP") for name, path in found.items()}


def of_users(project: Path) -> None:
    """A program, and an image of kit build."""
    (project / "train.py").write_text("import torch\n")
    (project / "images").mkdir()
    (project / "images/first-1.sqsh").write_bytes(b"x")
    (project / "images/first-1.json").write_text(json.dumps({"file": "first-1.sqsh", "size": 1, "sha256": hashlib.sha256(b"x").hexdigest()}))
    (project / "images/first.json").symlink_to("first-1.json")


@pytest.mark.parametrize("name", ["cpus", "a100", "laptop"])
def test_the_files_of_a_recorded_site(name: str, slurm, init, tmp_path: Path) -> None:
    """cpus: nodes with a disk and a torch of their own. a100: 4 GPUs, InfiniBand, accounts, Pyxis, nothing idle. laptop: no Slurm."""
    if name == "a100":
        of_users(tmp_path / "project")
    found = {"said": init(slurm(name)), **files(tmp_path)}
    golden = SITES / name / "expected"
    if os.environ.get("KIT_UPDATE_GOLDEN"):
        golden.mkdir(exist_ok=True)
        for file, text in found.items():
            (golden / file).write_text(text)
    assert found == {path.name: path.read_text() for path in golden.iterdir()}
    assert (tmp_path / "project/digits.py").exists() == (name != "a100")
    assert not [path for path in (tmp_path / "project").iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("has_image", [True, False])
def test_where_only_docker_is_the_image_that_it_built_is_the_jobs(has_image: bool, slurm, init, tmp_path: Path) -> None:
    site, record = slurm("laptop"), tmp_path / "project/images/first-1.json"
    of_users(tmp_path / "project")
    record.write_text(json.dumps({**json.loads(record.read_text()), "engine": "docker", "image_id": "sha256:1"}))
    (site / "bin/docker").write_text(f'#!/bin/sh\n[ "$*" = "image inspect sha256:1" ] && {str(has_image).lower()}\n')
    (site / "bin/docker").chmod(0o755)
    said, job = init(site), files(tmp_path)["job.yaml"]
    found = "images/ has it, and docker has what it was made of"
    lack = "nothing here runs first, and no torch seen for python3 here"
    assert (found in said) == (found in job) == ("\nimage: first\n" in job) == has_image
    assert (lack in said) != has_image
    assert said.endswith("kit: next\n  kit run\n") == has_image


def test_links_to_images_that_are_gone_are_no_images(slurm, init, tmp_path: Path) -> None:
    of_users(tmp_path / "project")
    for name in ("old.sqsh", "old.json"):
        (tmp_path / "project/images" / name).symlink_to(f"/purged/{name}")
    said = init(slurm("a100"))
    assert "images/ has it\n" in said and "images/old" not in said


@pytest.mark.parametrize("recipe", ["Dockerfile", "Containerfile"])
@pytest.mark.parametrize(
    ("name", "after"), [("laptop", ["kit run --image first"]), ("cpus", ["kit doctor job.yaml --nodes 2 --image first", "kit submit --follow --image first"])]
)
def test_a_dockerfile_is_named_as_the_next_step(name: str, after: list[str], recipe: str, slurm, init, tmp_path: Path) -> None:
    site = slurm(name)
    if name == "cpus":
        (site / "node").write_text("".join(line for line in (site / "node").open() if "\ttorch\t" not in line))
    (tmp_path / "project" / recipe).touch()
    steps = [f"kit build --name first    # a {recipe} is here", *after]
    assert init(site).endswith("kit: next\n" + "".join(f"  {step}\n" for step in steps))


def test_an_image_is_built_for_nodes_of_another_kind_of_machine(slurm, init, tmp_path: Path) -> None:
    site = slurm("cpus")
    for file, machine in (("look", "x86_64"), ("node", "aarch64")):
        lines = [line for line in (site / file).open() if "\ttorch\t" not in line]
        name = lines[-1].partition("\t")[0]
        (site / file).write_text("".join([*lines, f"{name}\tmachine\t{machine}\n"]))
    assert "kit: next\n  kit build --name first --platform linux/arm64\n" in init(site)
    assert "# kit build --name first --platform linux/arm64 makes it; or" in files(tmp_path)["job.yaml"]


def test_a_sites_own_profile_of_the_cluster_is_used_and_no_other_is_written(slurm, init, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sites = tmp_path / "etc/kit/clusters"
    sites.mkdir(parents=True)
    (sites / "hydra.yaml").write_text("runtime: none\nslurm: {account: everybody}\n")
    monkeypatch.setenv("XDG_CONFIG_DIRS", str(tmp_path / "etc"))
    said = init(slurm("cpus"))
    assert "kit: used the site's TMP/etc/kit/clusters/hydra.yaml\n" in said
    assert "  container      none                found: TMP/etc/kit/clusters/hydra.yaml says so\n" in said
    assert list(files(tmp_path)) == ["job.yaml"]
    written = (tmp_path / "project/job.yaml").read_text()
    assert f"\n# The site's own profile of this cluster, {sites}/hydra.yaml: settings of all jobs here.\ncluster: hydra\n" in written
    assert "everybody" in str(its.plan_of(tmp_path / "project/job.yaml").header)


def change(site: Path, file: str, old: str, new: str) -> None:
    text = (site / file).read_text()
    assert old in text
    (site / file).write_text(text.replace(old, new))


@pytest.mark.parametrize(
    "cluster, name",
    [
        ("../../etc/passwd", "etc-passwd"),
        (HOSTILE_NAME, "a-b-c-d-touch-X-touch-Y"),
        ("generic", "generic-cluster"),
        ("no", "no"),
        ("404", "404"),
        ("site.yaml", "site-yaml"),
        ("☃", "cluster"),
    ],
)
def test_a_cluster_of_any_name_has_a_profile_that_jobs_can_name(cluster: str, name: str, slurm, init, tmp_path: Path) -> None:
    site = slurm("cpus")
    change(site, "config", "hydra", cluster)
    init(site)
    assert [path.relative_to(tmp_path / "config") for path in (tmp_path / "config").rglob("*.*")] == [Path(f"kit/clusters/{name}.yaml")]
    assert its.plan_of(tmp_path / "project/job.yaml").profile.cluster == name


@pytest.mark.parametrize(
    ("has_disk", "lines"),
    [
        (True, ["# found: /local of c01 is xfs; each job has its own /tmp, so what it unpacks there is lost to the next", "scratch: /local"]),
        (
            False,
            [
                "# guessed: each job has its own /tmp, so what it unpacks there is lost to the next - change it if a node has another folder on its own disk",
                "# scratch: /local",
            ],
        ),
    ],
)
def test_a_tmp_that_each_job_has_for_itself_is_no_place_for_containers(has_disk: bool, lines: list[str], slurm, init, tmp_path: Path) -> None:
    site = slurm("cpus")
    change(site, "config", "ClusterName", "JobContainerType        = job_container/tmpfs\nClusterName")
    change(site, "node", "/tmp\tyes\ttmpfs\t93750", "/tmp\tyes\txfs\t781250")
    if not has_disk:
        change(site, "node", "/local\tyes\txfs", "/local\tyes\tlustre")
    init(site)
    written = (tmp_path / "config/kit/clusters/hydra.yaml").read_text().splitlines()
    at = next(number for number, line in enumerate(written) if line.endswith("scratch: /local"))
    assert written[at - 1 : at + 1] == lines


@pytest.mark.parametrize("disk", ["/opt/dlami/nvme", "/mnt/localssd", "/mnt/localdisk", "/mnt/resource", "/raid"])
def test_the_large_disk_of_a_machine_in_a_cloud_is_found(disk: str, slurm, init, tmp_path: Path) -> None:
    site = slurm("cpus")
    change(site, "node", "/local\t/local\tyes", f"{disk}\t{disk}\tyes")
    change(site, "node", "/tmp\tyes\ttmpfs\t93750", "/tmp\tyes\text4\t93750")
    init(site)
    assert f" look={disk} " in (site / "asked").read_text()
    assert f"\nscratch: {disk}\n" in files(tmp_path)["hydra.yaml"]


AZURE = "c01\tchassis\t7783-7084-3265-9085-8269-3286-77\n"
GOOGLE = "c01\tchassis\tGoogle\n"  # a tag of another cloud
IMEX = "c01\tdevices\t/dev/nvidia-caps-imex-channels\n"
RACK = f"{IMEX}c01\tgpu\tNVIDIA GB200\tNVIDIA GB200\n"


@pytest.mark.parametrize(
    "devices, shipped",
    [
        ("c01\trdma\tmlx5_0\tACTIVE\tInfiniBand\n", "infiniband"),
        ("c01\trdma\trdmap0s6\tACTIVE\tUnspecified\n", "efa"),
        ("c01\tfabric\tcxi\t-\t1\t-\n", "slingshot"),
        ("c01\tfabric\topa\thfi1verbs\t1\t-\nc01\trdma\thfi1_0\tACTIVE\tInfiniBand\n", "omni-path"),
        (f"c01\tdevices\t/dev/aperture_devices\n{GOOGLE}", "gcp"),
        (f"{RACK}c01\trdma\tmlx5_0\tACTIVE\tInfiniBand\n", "gb200"),
        (f"{RACK}{AZURE}c01\trdma\tmlx5_ib0\tACTIVE\tInfiniBand\n", "gb200"),
        (f"{RACK}c01\trdma\trdmap0s6\tACTIVE\tUnspecified\n", "efa"),
        (f"{IMEX}c01\tgpu\tNVIDIA H100\nc01\trdma\tmlx5_0\tACTIVE\tInfiniBand\n", "infiniband"),
        (f"{AZURE}c01\trdma\tmlx5_an0\tACTIVE\tEthernet\nc01\trdma\tmlx5_ib0\tACTIVE\tInfiniBand\n", "azure"),
        (f"{AZURE}c01\trdma\tmlx5_an0\tACTIVE\tEthernet\n", "infiniband"),
        (f"{GOOGLE}c01\trdma\tmlx5_0\tACTIVE\tEthernet\n", "infiniband"),
        (IMEX, "generic"),
        (AZURE, "generic"),
        ("", "generic"),
    ],
)
def test_a_fabric_gets_what_its_own_profile_says(devices: str, shipped: str, slurm, init, tmp_path: Path) -> None:
    site = slurm("cpus")
    (site / "node").write_text((site / "node").read_text() + devices)
    init(site)
    problems = Problems()
    ours, theirs = (load(str(path), "", problems) for path in (tmp_path / "config/kit/clusters/hydra.yaml", ROOT / f"env/{shipped}.yaml"))
    assert (ours.env, {name: item.value for name, item in ours.slurm.items()}) == (theirs.env, {name: item.value for name, item in theirs.slurm.items()})
    assert not problems.found


@pytest.mark.parametrize(
    "of_login, guess",
    [
        (AZURE, "the login node is a virtual machine of Azure - change it if the nodes have no InfiniBand\nenv:\n"),
        (
            "c01\tfabric\topa\thfi1verbs\t1\t-\nc01\trdma\thfi1_0\tACTIVE\tInfiniBand\n",
            "the login node has hfi1_0 (InfiniBand) - change it if the nodes have another network\n# env:\n#   # Where every image has aws-ofi-nccl",
        ),
    ],
)
def test_the_login_nodes_network_is_a_guess_at_the_nodes(of_login: str, guess: str, slurm, init, tmp_path: Path) -> None:
    site = slurm("cpus")
    (site / "look").write_text((site / "look").read_text() + of_login.replace("c01\t", "login1\t"))
    init(site, ask_node=False)
    assert f"\n# guessed: {guess}" in files(tmp_path)["hydra.yaml"]


def test_where_no_limits_come_along_none_need_be_kept_away(slurm, init, tmp_path: Path) -> None:
    site = slurm("a100")
    change(site, "config", "PropagateResourceLimits = ALL", "PropagateResourceLimits = NONE")
    init(site)
    assert "propagate" not in files(tmp_path)["deep-thought.yaml"]


def test_an_older_slurm_is_asked_for_gpus_by_gres(slurm, init, tmp_path: Path) -> None:
    site = slurm("a100")
    change(site, "config", "select/cons_tres", "select/cons_res")
    init(site)
    assert "\n# found: SelectType=select/cons_res, which knows no --gpus-per-node\ngpu_directive: gres\n" in files(tmp_path)["deep-thought.yaml"]
    assert ("gres", "gpu:4") in its.plan_of(tmp_path / "project/job.yaml").header


RANKS = 'import torch\nprint(torch.distributed)\nif __name__ == "__main__":\n    print()\n'


@pytest.mark.parametrize(
    "programs, command, launcher",
    [
        ({"main.py": "", "other.py": "import torch"}, ("main.py",), "torchrun"),
        ({"fit.py": "from torch import nn", "tool.py": "import os"}, ("fit.py",), "torchrun"),
        ({"a.py": "import torch", "b.py": RANKS, "c.py": "import torch\nif __name__ == '__main__': pass\n"}, ("b.py",), "torchrun"),
        ({"a.py": "import torch\nimport torch.distributed\n", "b.py": RANKS.replace("torch.distributed", "LOCAL_RANK")}, ("b.py",), "torchrun"),
        ({f"{HOSTILE_NAME}.py": "import torch"}, (f"{HOSTILE_NAME}.py",), "torchrun"),
        ({"train.py": "import torch.multiprocessing as mp\nmp.spawn(print)\n"}, ("train.py",), "spawn"),
    ],
)
def test_the_program_that_is_there_is_the_jobs(programs: dict[str, str], command: tuple[str, ...], launcher: str, slurm, init, tmp_path: Path) -> None:
    for name, text in programs.items():
        (tmp_path / "project" / name).write_text(text)
    init(slurm("cpus"))
    plan = its.plan_of(tmp_path / "project/job.yaml")
    assert (plan.program.command, plan.program.launcher) == (command, launcher)
    assert not (tmp_path / "project/digits.py").exists()


@pytest.mark.parametrize(
    "programs, listed",
    [
        ({"a.py": "import torch", "b.py": "import torch"}, "a.py, b.py"),
        ({"a.py": RANKS, "b.py": RANKS, "c.py": "import torch"}, "a.py, b.py"),
        ({"tool.py": "import os"}, "tool.py"),
        ({f"{number:02}.py": "" for number in range(11)}, ", ".join(f"{number:02}.py" for number in range(10)) + " ..."),
    ],
)
def test_of_several_programs_the_user_names_one_and_nothing_is_written(programs: dict[str, str], listed: str, slurm, init, tmp_path: Path) -> None:
    for name, text in programs.items():
        (tmp_path / "project" / name).write_text(text)
    with pytest.raises(UsageError) as error:
        init(slurm("laptop"))
    first = listed.partition(",")[0]
    fix = f"name it: kit init {first}; or for kit's own example name an empty folder: kit init FOLDER"
    assert str(error.value) == f"kit: kit cannot tell which program to run: {listed}\n  fix: {fix}"
    assert sorted(path.name for path in (tmp_path / "project").iterdir()) == sorted(programs)


@pytest.mark.parametrize("target, job, command", [("src/fit.py", "job.yaml", "src/fit.py"), ("../other/fit.py", "../other/job.yaml", "fit.py")])
def test_the_program_that_is_named_is_the_jobs(target: str, job: str, command: str, slurm, init, tmp_path: Path) -> None:
    for name in ("src/fit.py", "../other/fit.py", "train.py"):
        (tmp_path / "project" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "project" / name).write_text("import torch\n")
    said = init(slurm("laptop"), target=Path(target))
    assert re.search(rf"^  program +{command} +found: {command} was named$", said, re.MULTILINE)
    assert ("cd TMP/other && kit run" in said) == (job != "job.yaml")
    plan = its.plan_of(tmp_path / "project" / job)
    assert (plan.layout.name, plan.program.command) == ("fit", (command,))
    assert os.path.samefile(plan.program.workdir, tmp_path / "project" / os.path.dirname(job))


@pytest.mark.parametrize("target, said", [("tran.py", "there is no program tran.py\n  fix: did you mean 'train.py'?"), ("notes", "notes is neither a folder")])
def test_what_is_neither_a_program_nor_a_folder_is_refused(target: str, said: str, slurm, init, tmp_path: Path) -> None:
    for name in ("train.py", "notes"):
        (tmp_path / "project" / name).touch()
    with pytest.raises(UsageError, match=re.escape(said)):
        init(slurm("laptop"), target=Path(target))


def test_an_idle_node_is_asked_by_a_job_as_the_site_wants_it(slurm, init, monkeypatch: pytest.MonkeyPatch) -> None:
    """In that partition alone, with a GPU of a named type, and with what the shell names for every job: srun does not read that."""
    monkeypatch.setenv("SBATCH_QOS", "short")
    monkeypatch.setenv("SBATCH_RESERVATION", "course")
    site = slurm("a100")
    change(site, "nodes", "g001|mix", "g001|idle")
    (site / "node").write_text((SITES / "cpus/node").read_text().replace("c01", "g001"))
    refusal = "echo 'srun: error: Unable to allocate resources: Invalid qos specification' >&2; exit 1"
    stand_in = (site / "bin/srun").read_text()
    (site / "bin/srun").write_text(stand_in.replace('"srun "*)', f'"srun "*) [[ "$*" == *--qos=short*--gres=gpu:a100:1* ]] || {{ {refusal}; }};'))
    said = init(site)
    assert "and g001 of it" in said
    (asked,) = [line for line in (site / "asked").read_text().splitlines() if line.startswith("--nodelist")]
    assert {"--nodelist=g001", "--nodes=1", "--partition=gpu", "--account=ml"} <= set(asked.split()) and "reservation" not in asked
    (site / "asked").unlink()
    init(site, ask_node=False, force=True)
    assert not (site / "asked").exists()


def test_where_slurm_takes_no_job_that_does_not_name_the_type_of_gpu_the_job_names_it(slurm, init, tmp_path: Path) -> None:
    site = slurm("a100")
    (site / "bin/sbatch").write_text(
        '#!/bin/bash\nscript="$(cat "${@: -1}" 2>/dev/null || cat)"\n'
        '[[ "${script}" == *--gres=gpu:a100:* && "${script}" != *gpus-per-node* ]] && echo "sbatch: Job 7 to start" >&2 && exit\n'
        "echo 'sbatch: error: Batch job submission failed: name the type of GPU' >&2\nexit 1\n"
    )
    assert "kit: Slurm would accept it: Job 7 to start\n" in init(site)
    assert '\n  gres: "gpu:a100:4"           # found: Slurm takes no job here that does not name the type\n' in files(tmp_path)["job.yaml"]


@pytest.mark.parametrize("gpus", ["gpu:a100_1g.5gb:28(S:0-3)", "gpu:a100:2(S:0),gpu:a100_1g.5gb:14(S:1,3)"])
def test_of_gpus_that_are_parts_of_one_a_first_job_takes_what_a_program_sees(gpus: str, slurm, init, tmp_path: Path) -> None:
    site = slurm("a100")
    for name in ("kinds", "nodes"):
        (site / name).write_text((site / name).read_text().replace("gpu:a100:4(S:0-3)", gpus))
    init(site)
    job = files(tmp_path)["job.yaml"]
    assert "\nnodes: 2\ngpus_per_node: 1\nprocesses_per_node: 1\n" in job and "\n  cpus-per-task: 4 " in job
    assert " x a100_1g.5gb; a program can use only one part of a GPU (MIG); " in job


@pytest.mark.parametrize(
    ("kinds", "wants_type", "expected"),
    [
        ([{"a100": 4}, {"h100": 4}], False, (1, 4, "gpu:a100:4")),
        ([{"a100": 4}, {"a100_1g.5gb": 28}], False, (1, 1, "")),
        ([{"a100": 4}, {"a100": 2, "a100_1g.5gb": 2}], False, (1, 4, "gpu:a100:4")),
        ([{"a100": 2, "a100_1g.5gb": 14}], True, (1, 1, "gpu:a100:1")),
        ([{"a100": 2, "h100": 4}], True, (1, 2, "gpu:a100:2")),
        ([{"a100": 2, "h100": 4}], False, (1, 6, "")),
    ],
)
def test_a_first_job_asks_for_no_more_nodes_than_have_its_gpus(kinds: list[dict[str, int]], wants_type: bool, expected: tuple[int, int, str]) -> None:
    partition = Partition("gpu", tuple(Kind(1, 64, 256000, gpus) for gpus in kinds))
    site = survey.Site("x", probe.Machine("x"), partition=partition, wants_type=wants_type)
    found, _ = shape.choose(site, example=False)
    assert (found.nodes, found.gpus, found.one_type) == expected


def test_a_node_that_does_not_answer_makes_guesses_with_the_reason(slurm, init, tmp_path: Path) -> None:
    site = slurm("cpus")
    (site / "node").unlink()
    init(site)
    assert "\n# guessed: /tmp of a node was not seen: srun on c01: " in files(tmp_path)["hydra.yaml"]


def test_a_folder_that_nodes_do_not_see_is_told(slurm, init, tmp_path: Path) -> None:
    site = slurm("cpus")
    change(site, "node", "\t77\t", "\t78\t")
    assert re.search(r"^  folder +not shared +guessed: TMP/project is another folder on c01$", init(site), re.MULTILINE)
    for name in ("look", "node"):
        host = {"look": "login1", "node": "c01"}[name]
        (site / name).write_text((site / name).read_text() + f"{host}\tlook\t/home/ada\t/home/ada\tyes\tnfs4\t900\t9\t9\t5\t1700000000\n")
    change(site, "node", f"look\t{tmp_path}/project", "look\t/elsewhere")
    change(site, "look", "/tmp\tyes\txfs", "/tmp\tyes\ttmpfs")
    change(site, "look", "\t128\t", "\t1\t")  # another one, of the same number
    with pytest.raises(KitError) as error:
        init(site, force=True)
    fix = "start from a folder that all nodes share, such as one below /home/ada; if it is one: kit init --no-look"
    assert str(error.value) == f"kit: c01 does not see {tmp_path}/project\n  fix: {fix}"


def test_a_job_that_slurm_would_refuse_is_an_error_that_stops_a_chain_of_commands(slurm, init, tmp_path: Path) -> None:
    site = slurm("cpus")
    (site / "bin/sbatch").write_text("#!/bin/sh\necho 'sbatch: error: Batch job submission failed: Invalid account' >&2\nexit 1\n")
    with pytest.raises(KitError, match=r"the files are written, but Slurm would not accept the job: .*Invalid account"):
        init(site)
    assert set(files(tmp_path)) == {"hydra.yaml", "job.yaml"}


def test_a_named_partition_must_be_one_of_slurms(slurm, init) -> None:
    with pytest.raises(UsageError, match="no partition 'gqu'"):
        init(slurm("a100"), partition="gqu")
    assert re.search(r"^  partition +cpu +found: --partition named it; no time limit$", init(slurm("a100"), partition="cpu"), re.MULTILINE)


def here(path: Path) -> set[str]:
    return {str(item.relative_to(path)) for item in path.rglob("*")}


def test_where_nobody_can_be_asked_nothing_is_replaced(kit, tmp_path: Path) -> None:
    config = tmp_path / "config"
    project = tmp_path / "project"
    project.mkdir()
    (project / "job.yaml").write_text("command: mine.py\n")
    done = kit("init", "--local", cwd=project, check=False, XDG_CONFIG_HOME=str(config))
    assert done.returncode == 2
    assert done.stderr == "kit: job.yaml exists already, with other contents\n  fix: to replace it: kit init --force; or move it away\n"
    assert here(project) == {"job.yaml"} and not [path for path in config.rglob("*") if path.is_file()]
    kit("init", "--local", "--force", cwd=project, XDG_CONFIG_HOME=str(config))
    assert (project / "job.yaml").read_text() != "command: mine.py\n"

    # A profile may have been changed for all other projects: it stays, and the next project has its job.
    profile = config / "kit/clusters/local.yaml"
    profile.write_text("env: {MINE: yes}\n")
    said = kit("init", "other", "--local", cwd=project, XDG_CONFIG_HOME=str(config)).stdout
    assert "local.yaml, whose contents differ; to replace it: kit init --force\n" in said and "wrote other/job.yaml\n" in said
    assert profile.read_text() == "env: {MINE: yes}\n"
    again = kit("init", "other", "--local", cwd=project, XDG_CONFIG_HOME=str(config)).stdout
    assert "other/job.yaml is up to date\n" in again


@pytest.mark.parametrize("answer, replaced", [("y", True), ("", False), ("no", False)])
def test_at_a_terminal_every_replacement_is_asked_for(answer: str, replaced: bool, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("command: digits.py\n")
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "kit", "init", "--local"]
    process = subprocess.Popen(
        command, cwd=tmp_path, env={**os.environ, "XDG_CONFIG_HOME": str(tmp_path / "config")}, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    os.write(ours, f"{answer}\n".encode())
    said = process.communicate(timeout=60)[0].decode()
    os.close(ours)
    os.close(theirs)
    assert "job.yaml exists already, with other contents; replace it? [y/N] " in said
    assert process.returncode == 0, said
    assert ("kit: wrote job.yaml" in said, "kit: kept job.yaml" in said) == (replaced, not replaced)
    assert ((tmp_path / "job.yaml").read_text() == "command: digits.py\n") == (not replaced)


def test_a_slurm_that_does_not_answer_is_told_in_two_lines(kit, slurm, tmp_path: Path) -> None:
    site = slurm("cpus")
    (site / "bin/scontrol").write_text("#!/bin/sh\necho 'slurm_load_ctl_conf error: Unable to contact slurm controller (connect failure)' >&2\nexit 1\n")
    environment = {"PATH": f"{site}/bin:{os.environ['PATH']}", "XDG_CONFIG_HOME": str(tmp_path / "config")}
    done = kit("init", check=False, **environment)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "kit: Slurm does not answer: scontrol: slurm_load_ctl_conf error: Unable to contact slurm controller (connect failure)\n"
        "  fix: is it up? scontrol ping; without it, for this machine only: kit init --local\n"
    )
    assert here(tmp_path) == set()
    kit("init", "--local", **environment)


@pytest.mark.parametrize("folder, config", [("/proc/nowhere", "config"), (".", "/proc/nowhere")])
def test_a_place_that_cannot_be_written_is_told_and_nothing_is_left(folder: str, config: str, kit, tmp_path: Path) -> None:
    done = kit("init", folder, "--local", check=False, XDG_CONFIG_HOME=str(tmp_path / config))
    assert done.returncode == 1
    assert done.stderr.startswith("kit: cannot write /proc/nowhere/") and done.stderr.count("\n") == 2 and "\n  fix: make " in done.stderr
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_job_that_kit_cannot_use_is_not_written(kit, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    done = kit("init", "--local", "--image", "notes.txt", check=False, XDG_CONFIG_HOME=str(tmp_path / "config"))
    assert done.returncode == 1 and done.stderr.startswith("kit: nothing was written: kit could not use the job: ")
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["notes.txt"]
    done = kit("init", "--local", "--image", "nowhere.sif", check=False)
    assert done.returncode == 2 and done.stderr.startswith("kit: --image: no such image: nowhere.sif\n  fix: ")


def test_kit_submit_takes_the_job_that_is_here(kit, tmp_path: Path) -> None:
    environment = {"XDG_CONFIG_HOME": str(tmp_path / "config")}
    kit("init", "--local", **environment)
    assert "digits.py --epochs 20" in kit("submit", "--dry-run", **environment).stdout
    assert "digits.py --epochs 20 --epochs 3" in kit("submit", "--dry-run", "--", "--epochs", "3", **environment).stdout


def test_a_machine_is_looked_at_without_loading_or_changing_anything(tmp_path: Path) -> None:
    folder = tmp_path / HOSTILE_NAME
    folder.mkdir()
    found = probe.here(probe.command({}, f"look={folder}", f"look={tmp_path}/nowhere"))
    assert found.name and found.number("cpus") == len(os.sched_getaffinity(0))
    folders = survey.folders_of(found)
    assert folders.keys() == {str(folder)}
    assert folders[str(folder)].writable and folders[str(folder)].inode == str(folder.stat().st_ino)


def test_a_folder_whose_line_is_cut_off_was_not_seen(tmp_path: Path) -> None:
    folder = tmp_path / "x" / ("y" * 250) / ("z" * 250)
    folder.mkdir(parents=True)
    assert survey.folders_of(probe.here(probe.command({}, f"look={folder}", f"look={tmp_path}"))).keys() == {str(tmp_path)}


def test_two_machines_see_one_folder_or_two() -> None:
    def same(first: str, second: str) -> bool:
        kinds = [line.split() for line in (first, second)]
        mine, theirs = (survey.Folder(kind, 9, True, inode, changed) for kind, inode, changed in kinds)
        return mine.is_same(theirs)

    assert same("nfs4 77 1700000000", "nfs4 77 1700000005")  # a client's cache is a minute old
    assert not same("nfs4 77 1700000000", "nfs4 78 1700000000")
    assert same("ext4 77 1700000000", "ext4 77 1700000000")  # containers of one machine
    assert not same("xfs 128 1700000000", "xfs 128 1700000005")  # the tops of two disks
    assert not same("tmpfs 1 1700000000", "tmpfs 1 1700000000")


@pytest.mark.parametrize(
    "partitions, chosen",
    [
        ({"cpu": {"default": True}, "gpu": {"gpus": 4}}, "gpu"),
        ({"big": {"gpus": 4, "count": 9}, "usual": {"gpus": 4, "default": True}}, "usual"),
        ({"spot": {"gpus": 4, "count": 9, "preempt": "CANCEL"}, "kept": {"gpus": 4}}, "kept"),
        ({"small": {"count": 1}, "big": {"count": 9}}, "big"),
        ({"big": {"count": 9, "up": False}, "hidden": {"count": 9, "hidden": True}, "small": {"count": 1}}, "small"),
        ({"theirs": {"count": 9, "accounts": ("chemistry",)}, "no-guests": {"count": 9, "denied_accounts": ("ml",)}, "small": {}}, "small"),
    ],
)
def test_the_partition_of_a_first_job(partitions: dict[str, dict[str, object]], chosen: str) -> None:
    found = {}
    for name, facts in partitions.items():
        more = {key: value for key, value in facts.items() if key not in ("gpus", "count")}
        found[name] = Partition(name, (Kind(facts.get("count", 2), 8, 8000, {"": facts["gpus"]} if "gpus" in facts else {}),), **more)
    assert survey._partition(found, {"ml": set()}, None).name == chosen
