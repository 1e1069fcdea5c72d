"""What is typed wins over the job file, and over what belongs there to the key that it changes."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit.api.job_request import JobRequest, Use
from kit.base.errors import Problems, UsageError
from kit.config import keys
from kit.config.job import option_name
from kit.config.yaml_source import Located
from kit.plan.plan import Plan
from test_choice import tool

pytestmark = pytest.mark.tame


@pytest.fixture
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The plan of a job file with words KEY=VALUE over it, for a cluster or for this machine, where only these tools are installed."""
    for name in ("train.py", "image.sqsh", "edf.toml"):
        (tmp_path / name).touch()
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def plan(job: str, typed: str = "", tools: str = "", *, here: bool = False, problems: Problems | None = None) -> Plan:
        Path("job.yaml").write_text(f"command: train.py\n{job}")
        for name in tools.split():
            tool(tmp_path / "bin", name)
        pairs = [word.split("=") for word in typed.split()]
        request = JobRequest("job.yaml", [], {key: Located(value, option_name(key)) for key, value in pairs}, problems or Problems())
        return request.plan(request.load(), None, Use(runs_here=here))

    return plan


PREEMPTED = "on_preempt: requeue\ncheckpoints: out\ncheckpoint_s: 60\nmax_requeues: 3\nresubmit: true\n"


@pytest.mark.parametrize(
    ("job", "typed"),
    [
        (PREEMPTED, "on_preempt=none"),
        (PREEMPTED, "on_preempt=none resubmit=false"),
        ("max_restarts: 3\nelastic: true\n", "max_restarts=0"),
        ("", "resubmit=false"),
        ("resubmit: false\n", ""),
    ],
)
def test_a_key_that_is_switched_off_takes_along_what_belongs_to_it(job: str, typed: str, planned) -> None:
    assert planned(job, typed).policy == planned("").policy


def test_checkpoints_stay_where_they_show_that_a_run_does_not_hang(planned, tmp_path: Path) -> None:
    assert planned(f"{PREEMPTED}stall_timeout: 10m\n", "on_preempt=none").policy.checkpoints == str(tmp_path / "out")


def test_what_is_typed_and_says_nothing_is_refused(planned) -> None:
    with pytest.raises(UsageError) as refused:
        planned(PREEMPTED, "on_preempt=none checkpoints=out")
    assert str(refused.value) == "kit: --checkpoints: checkpoints says nothing without on_preempt\n  fix: add `on_preempt: requeue`, or leave it out"


STAGED = "image: image.sqsh\nstage: local\ncache: keep\nunpack: yes\n"


@pytest.mark.parametrize(
    ("typed", "tools", "here", "chosen"),
    [
        ("image=docker://x", "docker", True, ("docker", "none", "node", "")),
        ("runtime=apptainer", "apptainer", True, ("apptainer", "local", "keep", "")),
        ("runtime=apptainer", "apptainer", False, ("apptainer", "local", "keep", "")),
        ("", "apptainer", True, ("apptainer", "local", "keep", "")),
        ("", "enroot", True, ("enroot", "local", "keep", "yes")),
    ],
)
def test_how_the_image_of_the_file_starts_gives_way_to_what_is_typed_or_here(typed: str, tools: str, here: bool, chosen: tuple[str, ...], planned) -> None:
    container = planned(STAGED, typed, tools, here=here).container
    assert (container.runtime, container.stage, container.cache, container.unpack) == chosen


@pytest.mark.parametrize(("job", "typed"), [(STAGED, "runtime=apptainer unpack=yes"), (f"{STAGED}runtime: apptainer\n", "nodes=2")])
def test_what_does_not_fit_together_within_the_file_or_within_what_is_typed_is_refused(job: str, typed: str, planned) -> None:
    with pytest.raises(UsageError, match="the runtime apptainer unpacks no image, whatever the job says"):
        planned(job, typed)


@pytest.mark.parametrize("typed", ["stage=sbcast", "stage=local", "unpack=yes", "unpack=no", "remap_root=true"])
@pytest.mark.parametrize("here", [False, True])
def test_a_key_of_containers_beside_the_runtime_none_is_refused_where_both_are_typed(typed: str, here: bool, planned) -> None:
    with pytest.raises(UsageError) as refused:
        planned("", f"runtime=none {typed}", here=here)
    name = typed.partition("=")[0]
    problem = f"kit: {option_name(name)}: {name} says nothing without a container, and the runtime is none"
    assert str(refused.value) == f"{problem}\n  fix: leave it out, or name another runtime"


@pytest.mark.parametrize("typed", ["runtime=none", "runtime=none stage=none unpack=auto remap_root=false"])
def test_a_rehearsal_without_the_container_of_the_file_hears_nothing(typed: str, planned) -> None:
    problems = Problems()
    planned(f"{STAGED}remap_root: true\n", typed, problems=problems)
    assert problems.warnings == []


@pytest.mark.parametrize("named", ["runtime: pyxis\n", "cluster: site.yaml\n"])
def test_a_runtime_that_only_slurm_has_gives_way_to_one_that_is_here(named: str, planned, tmp_path: Path) -> None:
    Path("site.yaml").write_text("runtime: pyxis\n")
    tool(tmp_path / "bin", "srun", "  --container-image=[USER@][REGISTRY#]IMAGE[:TAG]|PATH")
    job = f"image: image.sqsh\n{named}"
    assert planned(job, tools="apptainer").container.runtime == "pyxis"
    plan = planned(job, here=True)
    assert (plan.container.runtime, plan.reasons.why_runtime) == ("apptainer", "apptainer is installed here")


@pytest.mark.parametrize(
    ("image", "typed", "problem", "fix"),
    [
        ("image.sqsh", "runtime=pyxis", "--runtime: pyxis", "leave it out, or name another: --runtime enroot or apptainer or singularity"),
        ("edf.toml", "", "job.yaml:2: container-engine", "name another image: --image FILE; or do without a container: --runtime none"),
    ],
)
def test_a_runtime_that_only_slurm_has_is_refused_where_nothing_takes_its_place(image: str, typed: str, problem: str, fix: str, planned) -> None:
    with pytest.raises(UsageError) as refused:
        planned(f"image: {image}\n", typed, here=True)
    assert str(refused.value) == f"kit: {problem} is a part of Slurm, without which the job runs here\n  fix: {fix}"


def test_a_shell_leaves_out_what_belongs_to_the_keys_that_it_does_not_use(planned, tmp_path: Path) -> None:
    planned("")
    job = f"command: train.py\n{PREEMPTED}max_restarts: 1\nelastic: true\nstall_timeout: 10m\non_stall: report\n"
    Path("job.yaml").write_text(job)
    request = JobRequest("job.yaml", [], {}, command="shell")
    assert request.plan(request.load_or_none(), None, Use()).policy == planned("").policy


def test_a_shell_refuses_what_belongs_to_the_keys_that_it_does_not_use(planned) -> None:
    planned("stall_timeout: 10m\n")
    request = JobRequest("job.yaml", [], {"on_stall": Located("report", "--on-stall")}, command="shell")
    with pytest.raises(UsageError) as refused:
        request.plan(request.load_or_none(), None, Use())
    assert str(refused.value) == "kit: --on-stall: kit shell does not use it\n  fix: leave it out"


@pytest.mark.parametrize("option", ["signal=USR1@60", "requeue=true", "propagate=NONE", "kill-on-invalid-dep=yes"])
def test_a_shell_leaves_out_the_files_options_that_salloc_lacks_and_refuses_typed_ones(option: str, planned) -> None:
    planned("")
    name, value = option.split("=")
    Path("job.yaml").write_text(f"command: train.py\nlauncher: srun\nslurm: {{{name}: {value}, mem: 1G}}\n")
    request = JobRequest("job.yaml", [], {}, command="shell")
    request.plan(request.load_or_none(), None, Use())
    typed = {"slurm": keys.as_mapping("--slurm", [option, "mem=2G"], Problems())}
    request = JobRequest("job.yaml", [], typed, command="shell")
    with pytest.raises(UsageError) as refused:
        request.plan(request.load_or_none(), None, Use())
    assert str(refused.value) == f"kit: --slurm: kit shell does not use '{name}'\n  fix: leave it out"


@pytest.mark.parametrize(
    ("of_file", "typed", "told"),
    [
        ("{webhook: HOOK}", "--notify on=start,end", (("start", "end"), "HOOK", ())),
        ("{webhook: HOOK, on: [start, end]}", "--notify webhook=OTHER", (("start", "end"), "OTHER", ())),
        ("{webhook: HOOK}", "--notify command=mail", (("end",), "HOOK", ("mail",))),
        ("{on: [start]}", "--notify command=mail", (("start",), "", ("mail",))),
    ],
)
def test_what_is_typed_of_notify_is_added_to_that_of_the_file(of_file: str, typed: str, told: tuple[object, ...], planned) -> None:
    problems = Problems()
    option, words = typed.split()
    given = {"notify": keys.as_mapping(option, [words], problems)}
    planned("")
    Path("job.yaml").write_text(f"command: train.py\nnotify: {of_file}\nsecrets: {{HOOK: {{command: 'true'}}, OTHER: {{command: 'true'}}}}\n")
    request = JobRequest("job.yaml", [], given, problems)
    assert request.plan(request.load(), None, Use()).policy.notify[:3] == told


def test_a_message_needs_a_way(planned) -> None:
    with pytest.raises(UsageError, match=r"job\.yaml:2: notify names neither a web hook nor a command"):
        planned("notify: {on: [start]}\n")
