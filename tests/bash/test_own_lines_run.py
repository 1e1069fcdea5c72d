"""A job's own lines of bash, run as `kit run` runs them: what reaches the program, and what a failing line does."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from running import environment

from kit_forks import Forks
from samples import ROOT

SHOW = """\
import json, os, resource, sys
names = ("A", "B", "PATH", "HOST", "TOKEN", "RANK", "LOCAL_RANK", "WORLD_SIZE", "NODE_RANK", "KIT_IS_SET_UP", "KIT_HOST_IS_SET_UP")
facts = {name: os.environ.get(name) for name in names}
limit = resource.getrlimit(resource.RLIMIT_CORE)[0]
print(json.dumps([facts, os.getcwd(), os.umask(0), limit, sys.argv[1:]]), flush=True)
"""
SHAPE = "runtime: none\nlauncher: spawn\n"
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "my project"
    folder.mkdir()
    (folder / "show.py").write_text(SHOW)
    (folder / "fails.sh").write_text("true\n\n\nfalse\n")
    return folder


@pytest.fixture
def run(forks: Forks, project: Path) -> Run:
    def call(job: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        (project / "job.yaml").write_text(job)
        return forks.run(["run", "job.yaml", *arguments], project, user(project, **variables), timeout_s=120)

    return call


def user(project: Path, **variables: str) -> dict[str, str]:
    return {**environment(Path(sys.executable).parent, **variables), "HOME": str(project.parent)}


def logs(project: Path) -> list[str]:
    return [path.read_text() for path in sorted(project.glob("runs/*/log/*/rank*.out"))]


def shown(project: Path) -> list[list]:
    return [json.loads(text.splitlines()[0]) for text in logs(project)]


@pytest.mark.parametrize("failing", ["", "2"])
def test_the_trainings_that_a_script_starts_on_each_gpu_are_all_waited_for(failing: str, run: Run, project: Path) -> None:
    """docs/arrays.md: the second one ends first."""
    (text,) = re.findall(r"^## Several small.*?```yaml\n(.*?)```", (ROOT / "docs/arrays.md").read_text(), re.DOTALL | re.MULTILINE)
    lines = ("import os, sys, time", "seed = sys.argv[2]", "time.sleep(2 / int(seed))", 'print(os.environ["CUDA_VISIBLE_DEVICES"], seed)')
    (project / "train.py").write_text("\n".join([*lines, f"sys.exit(seed == {failing!r})\n"]))
    done = run(f"runtime: none\n{text}")
    assert done.returncode == (1 if failing else 0), done.stdout + done.stderr
    assert {path.name: path.read_text() for path in project.glob("runs/*/log/*/seed*.out")} == {"seed1.out": "0 1\n", "seed2.out": "1 2\n"}
    assert "was ever connected" not in done.stdout + done.stderr


def test_what_setup_sets_reaches_the_program_and_only_that(run: Run, project: Path) -> None:
    job = f"""{SHAPE}nodes: 2
env: {{A: of the job, B: of the job}}
setup: |
  A="set up on ${{NODE_RANK}}, B was ${{B}}"; not_exported=1
  umask 077; ulimit -c 0; set +e; shopt -s nocasematch; IFS=x; cd /
  false
  kit::say() {{ echo broken; }}
  set -- one two
command: [show.py, a b]
"""
    done = run(job)
    assert done.returncode == 0, done.stdout + done.stderr
    for rank, (facts, folder, mask, limit, arguments) in enumerate(shown(project)):
        assert (facts["A"], facts["B"]) == (f"set up on {rank}, B was of the job", "of the job")
        assert (folder, mask, limit, arguments) == (str(project), 0o077, 0, ["a b"])
        assert facts["KIT_IS_SET_UP"] is facts["KIT_HOST_IS_SET_UP"] is None
    assert "broken" not in done.stdout + done.stderr


def test_what_setup_starts_has_none_of_kits_options_where_the_users_shell_exports_its_own(run: Run, project: Path) -> None:
    done = run(f"{SHAPE}setup: bash -c 'echo $-' >of-setup\ncommand: [bash, -c, 'echo $-']\n", SHELLOPTS="noclobber")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [(project / "of-setup").read_text(), *logs(project)] == ["hBc\n"] * 2


def test_a_program_is_found_by_the_path_that_setup_sets(run: Run, project: Path) -> None:
    (project / "venv").mkdir()
    (project / "venv/mine").write_text("#!/bin/sh\necho of the environment\n")
    (project / "venv/mine").chmod(0o755)
    done = run(f'{SHAPE}setup: PATH="$PWD/venv:$PATH"\ncommand: [mine]\n')
    assert done.returncode == 0, done.stdout + done.stderr
    assert logs(project) == ["of the environment\n"]


def test_a_script_runs_where_the_jobs_path_leads_to_the_program_alone(run: Run, project: Path) -> None:
    done = run(f"runtime: none\nenv: {{PATH: /opt/x/bin}}\nscript: |\n  {sys.executable} show.py\n  exit 3\n")
    assert done.returncode == 3, done.stdout + done.stderr
    ((facts, *_),) = shown(project)
    assert facts["PATH"] == "/opt/x/bin"
    assert "line 2 of script ended with code 3: exit 3\n" in done.stdout


def test_a_script_runs_in_the_bash_of_the_jobs_path_where_there_is_one(run: Run, project: Path) -> None:
    (project / "bin").mkdir()
    (project / "bin/bash").write_text('#!/bin/bash\nexport A=newer\nexec /bin/bash "$@"\n')
    (project / "bin/bash").chmod(0o755)
    done = run(f"runtime: none\nenv: {{PATH: '{project}/bin'}}\nscript: {sys.executable} show.py\n")
    assert done.returncode == 0, done.stdout + done.stderr
    ((facts, *_),) = shown(project)
    assert facts["A"] == "newer"


@pytest.mark.parametrize(
    ("key", "lines", "line"),
    [
        ("setup", "  echo one\n  ls /not-there\n  echo two\n", "line 2 of setup ended with code 2: ls /not-there"),
        ("setup", "  f() {\n    (exit 7)\n  }\n  f\n", "line 2 of setup ended with code 7: (exit 7)"),
        ("setup", "  false | cat\n", "line 1 of setup ended with code 1: false | cat"),
        ("setup", "  ulimit -c 0\n  source venv/bin/activate\n", "line 2 of setup ended with code 1: source venv/bin/activate"),
        ("setup", "  true\n  source fails.sh\n", "line 2 of setup ended with code 1: source fails.sh"),
        ("setup", "  true\n  [ -f x ] && source x\n", "line 2 of setup ended with code 1: [ -f x ] && source x"),
        ("setup", "  if [ ! -d /data/set ]; then\n    exit 3\n  fi\n", "line 2 of setup ended with code 3: exit 3"),
        ("setup", "  exit 0\n", "line 1 of setup ended with code 0: exit 0"),
        ("host_setup", "  true\n  module-of-nobody load x\n", "line 2 of host_setup ended with code 127: module-of-nobody load x"),
    ],
)
def test_a_line_that_fails_ends_the_run_and_is_named(key: str, lines: str, line: str, run: Run, project: Path) -> None:
    done = run(f"{SHAPE}{key}: |\n{lines}command: show.py\n")
    assert done.returncode == 1
    assert f"kit: error: local0: {line}\n" in done.stdout
    assert "a line of the job's setup failed (setup-failed)" in done.stdout  # the cause, from the event
    assert ("kit run --host-setup true" in done.stdout) == (key == "host_setup")
    assert not logs(project)


def test_a_node_that_is_ended_for_another_one_says_nothing(run: Run, project: Path) -> None:
    done = run(f"{SHAPE}nodes: 2\nsetup: |\n  if [ $NODE_RANK = 0 ]; then sleep 1; false; fi\n  sleep 60\ncommand: show.py\n")
    assert done.returncode == 1
    assert "local1: line" not in done.stdout and "take the exit out" not in done.stdout
    assert "kit: error: local0: line 1 of setup ended with code 1: if" in done.stdout


def test_what_host_setup_exports_reaches_the_ranks_of_every_node(run: Run, project: Path) -> None:
    done = run(f"{SHAPE}nodes: 2\nhost_setup: |\n  export HOST=$HOSTNAME\n  echo once\ncommand: show.py\n", HOSTNAME="first", LEFT_BEHIND="x")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [facts["HOST"] for facts, *_ in shown(project)] == ["first", "first"]
    assert (done.stdout + done.stderr).count("once") == 1


def test_host_setup_has_the_jobs_variables_and_no_secrets(run: Run, project: Path) -> None:
    job = f"{SHAPE}env: {{A: of the job}}\ninherit: [B]\nsecrets: [TOKEN]\nhost_setup: |\n  export HOST=$A,$B,${{TOKEN:-none}}\ncommand: show.py\n"
    done = run(job, B="inherited", TOKEN="hush", LEFT_BEHIND="x")
    assert done.returncode == 0, done.stdout + done.stderr
    ((facts, *_),) = shown(project)
    assert (facts["HOST"], facts["A"], facts["B"], facts["TOKEN"]) == ("of the job,inherited,none", "of the job", "inherited", "hush")


@pytest.mark.parametrize("image", ["", "image.sif"])
def test_kits_own_scripts_go_on_behind_host_setup_with_the_nodes_variables(image: str) -> None:
    show = 'echo "A=${A-} B=${B-} C=${C-} D=${D-} PATH=$PATH HOME=$HOME"'
    lines = f"""
source {ROOT}/launch/scripts/lib/host_setup.sh
KIT_IMAGE={image} KIT_ENV=(A=1 "B=of the job" C=3 D= PATH=/nowhere HOME=/of/the/image)
host_setup::lend; {show}
export C=changed
host_setup::take_back; {show}
compgen -e KIT_NODES_ || true
"""
    node = {"PATH": "/usr/bin:/bin", "HOME": "/home/me", "B": "of the node", "D": "of the node"}
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", lines], env=node, capture_output=True, text=True, timeout=60)
    home = "/home/me" if image else "/of/the/image"
    assert done.stdout.splitlines() == [
        f"A=1 B=of the job C=3 D= PATH=/usr/bin:/bin HOME={home}",
        "A= B=of the node C=changed D=of the node PATH=/usr/bin:/bin HOME=/home/me",
    ], done.stderr


def test_a_run_that_cannot_be_submitted_leaves_nothing_behind(forks: Forks, project: Path) -> None:
    (project / "job.yaml").write_text(f"{SHAPE}host_setup: 'true'\nsetup: 'true'\nscript: python show.py\n")
    done = forks.run(["submit", "job.yaml"], project, user(project), timeout_s=60)
    assert done.returncode == 1 and "sbatch" in done.stderr
    assert not list(project.glob("runs/[!.]*"))


def test_host_setup_begins_in_the_working_directory(run: Run, project: Path) -> None:
    (project / "env.sh").write_text("export OF_PROJECT=yes\n")  # kit has a file of this name in the run directory
    done = run(f"{SHAPE}host_setup: |\n  source env.sh\n  export A=$PWD-$OF_PROJECT\ncommand: show.py\n")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [facts["A"] for facts, *_ in shown(project)] == [f"{project}-yes"]


def test_a_secret_is_there_in_setup_and_in_no_process_behind_it_but_the_program(run: Run, project: Path) -> None:
    (project / "parent.py").write_text("print([open(f'/proc/{p}/environ').read().count('hush') for p in (__import__('os').getppid(), 'self')])")
    job = f'{SHAPE}secrets: [TOKEN, OTHER_TOKEN]\nsetup: test "$TOKEN" = hush && IFS=,\ncommand: parent.py\n'
    done = run(job, TOKEN="hush", OTHER_TOKEN="hush")
    assert done.returncode == 0, done.stdout + done.stderr
    assert logs(project) == ["[0, 2]\n"]


def test_a_script_has_its_ranks_variables_and_arguments(run: Run, project: Path) -> None:
    job = 'runtime: none\nnodes: 2\nscript: |\n  python show.py $NODE_RANK $RANK $LOCAL_RANK $WORLD_SIZE "${MASTER_ADDR:+master}" "$@"\n'
    done = run(job, "--", "a b")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [arguments for *_, arguments in shown(project)] == [[str(rank), str(rank), "0", "2", "master", "a b"] for rank in (0, 1)]
    # What the program starts has ranks of its own.
    assert [facts["RANK"] for facts, *_ in shown(project)] == [None, None]


@pytest.mark.parametrize("code", ["live", "snapshot"])
def test_trainings_that_a_script_starts_one_by_one_are_named(code: str, run: Run, project: Path) -> None:
    (project / "alone.py").write_text("# dist.init_process_group()\n")
    done = run(f"runtime: none\nnodes: 2\ncode: {code}\nscript: |\n  python alone.py\n")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 programs ended with 0, but none was ever connected with another node's" in done.stdout
    assert "init_process_group()" in done.stdout


def test_a_script_runs_for_each_rank_under_srun(run: Run, project: Path) -> None:
    done = run('runtime: none\nlauncher: srun\nprocesses_per_node: 2\nscript: python show.py $RANK "$@"\n')  # no arguments
    assert done.returncode == 0, done.stdout + done.stderr
    assert [arguments for *_, arguments in shown(project)] == [["0"], ["1"]]


def test_the_line_of_a_script_that_fails_ends_it_with_its_code(run: Run, project: Path) -> None:
    done = run("runtime: none\nscript: |\n  if true; then\n    python -c 'import sys; sys.exit(7)'\n  fi\n  echo never\n")
    assert done.returncode == 7
    assert logs(project) == ["kit: local0: line 2 of script ended with code 7: python -c 'import sys; sys.exit(7)'\n"]


@pytest.mark.parametrize("launcher", ["spawn", "srun"])
def test_a_signal_reaches_the_program_that_a_script_has_started(launcher: str, project: Path) -> None:
    (project / "wait.py").write_text(
        "import pathlib, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (pathlib.Path('told').touch(), sys.exit(0)))\n"
        "pathlib.Path('ready').touch()\n"
        "time.sleep(100)\n"
    )
    (project / "job.yaml").write_text(f"runtime: none\nlauncher: {launcher}\nscript: |\n  python wait.py\n  echo behind\n")
    kit = subprocess.Popen(
        [sys.executable, "-m", "kit", "run", "job.yaml"], cwd=project, env=user(project), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 60
        while not (project / "ready").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        kit.send_signal(signal.SIGTERM)
        kit.wait(60)
    finally:
        if kit.poll() is None:
            os.kill(kit.pid, signal.SIGKILL)
    assert (project / "told").exists()


def test_accelerates_launcher_in_a_script_is_told_the_numbers_that_it_lacks(run: Run, project: Path) -> None:
    (project / "alone.py").touch()
    done = run("runtime: none\nnodes: 2\nscript: |\n  : accelerate launch alone.py\n")
    assert done.returncode == 0, done.stdout + done.stderr
    assert 'fix: `accelerate launch --num_machines "$NNODES" --machine_rank "$NODE_RANK" ...` in the script' in done.stdout
