"""What single pages of the documentation say is what the code does."""

from __future__ import annotations

import base64
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import kit.base.signals
import pytest
import yaml
from kit.base.errors import KitError, UsageError
from kit.cli import entry
from kit.config import job as jobs
from kit.config import profiles
from kit.diagnose.why import findings
from kit.plan import staging
from kit.registry import credentials
from kit.remote import forward, ssh, where
from kit.runs import job_watch
from test_documentation import block, understood

from samples import ROOT

PAGES = {path.name: path.read_text() for path in (ROOT / "docs").glob("*.md")}


def sections(page: str) -> dict[str, str]:
    """The text of each section, by its heading."""
    parts = re.split(r"^## (.*)\n", PAGES[page], flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2]))


def cells(text: str) -> list[list[str]]:
    """The cells of all rows of the tables, but for their heads."""
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in re.findall(r"^\|.*\|$", text, re.MULTILINE)]
    marks = [index for index, row in enumerate(rows) if all(re.fullmatch(r"-+", cell.strip()) for cell in row)]
    return [[cell.strip() for cell in row] for index, row in enumerate(rows) if index not in marks and index + 1 not in marks]


# ---------------------------------------------------------------- exit-codes.md


def codes(heading: str) -> set[int]:
    """The numbers of a section's table."""
    return {int(code) for row in cells(heading) for code in re.findall(r"\d+", row[0])}


def test_the_exit_codes_of_commands_are_those_of_the_page() -> None:
    before, _, _ = PAGES["exit-codes.md"].partition("## The code of a run")
    own = {0, KitError.exit_code, UsageError.exit_code, ssh.UNREACHABLE, kit.base.signals.CTRL_C, entry.CLOSED_PIPE}
    assert codes(before) == own | {128 + signal.SIGHUP, 128 + signal.SIGTERM}


def test_the_exit_codes_of_ranks_are_those_of_signals_and_of_the_scripts() -> None:
    rows = [row for row in cells(sections("exit-codes.md")["The code of a run"]) if " to " not in row[0]]
    for code, meaning in rows:
        if names := re.findall(r"SIG[A-Z]+[12]?", meaning):
            assert code == ", ".join(str(128 + signal.Signals[name]) for name in names)
    (again,) = re.findall(r"^readonly KIT_GO_ON=(\d+)$", (ROOT / "launch/scripts/lib/preempt.sh").read_text(), re.MULTILINE)
    known = {code for cause in findings.CAUSES for code in cause.codes if code > 128}
    assert {again, *map(str, known)} <= {code for row in rows for code in row[0].split(", ")}


# ---------------------------------------------------------------- registries.md


def test_logins_are_looked_for_in_the_order_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(tmp_path / "named.json"))
    for name in ("DOCKER_CONFIG", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "ENROOT_CONFIG_PATH"):
        monkeypatch.setenv(name, str(tmp_path))
    found = [*credentials.files(), credentials.enroots()]
    listed = [row[1] for row in cells(sections("registries.md")["Where kit looks"])]
    named = ["REGISTRY_AUTH_FILE", "auth.json", "auth.json", "config.json", ".credentials"]
    assert [path.name for path in found] == ["named.json", *named[1:]]
    assert len(listed) == len(named) and all(word in cell for word, cell in zip(named, listed))


def test_the_lines_for_enroots_file_are_read_as_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ENROOT_CONFIG_PATH", "DOCKER_CONFIG", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.delenv("REGISTRY_AUTH_FILE", raising=False)
    monkeypatch.setenv("GITLAB_TOKEN", "glpat-1")
    monkeypatch.setenv("ECR_TOKEN", "of-today")
    page = PAGES["registries.md"]
    lines = block("text", "machine nvcr.io", page) + block("text", "$ECR_TOKEN", page)
    (tmp_path / ".credentials").write_text(lines)
    logins = {
        "nvcr.io": "$oauthtoken:nvapi-...",
        "registry.gitlab.com": "ada:glpat-1",
        "docker.io": "ada:dckr_pat_...",
        "123456789012.dkr.ecr.eu-west-1.amazonaws.com": "AWS:of-today",
    }
    for registry, login in logins.items():
        assert base64.b64decode(credentials.find(registry, "x").login or "").decode() == login


# ---------------------------------------------------------------- first-failure.md


@pytest.mark.skipif(sys.version_info < (3, 11), reason="this Python lacks marks below a traceback's lines")
def test_the_first_failure_fails_as_it_is_shown(kit, tame_path: Path) -> None:
    page = PAGES["first-failure.md"]
    (tame_path / "fails.py").write_text(block("python", "RANK", page))
    shown = block("text", "$ kit why", page)
    command, _, expected = shown.partition("$ kit why\n")
    done = kit(*shlex.split(command.splitlines()[0])[2:], cwd=tame_path, check=False)
    assert done.returncode == 1
    said = kit("why", cwd=tame_path).stdout
    (job,) = {path.name for path in tame_path.glob("runs/*/log/*") if path.is_dir()}
    (run,) = tame_path.glob("runs/*/log")
    said = said.replace(run.parent.name, "fails-20261123-185215-69b1")
    assert said.replace(job, "1960026955").replace(str(tame_path), "/home/ada") == expected
    assert command.partition("...\n")[2] in (done.stdout + done.stderr).replace(job, "1960026955")


# ---------------------------------------------------------------- administrators.md


def test_the_load_of_many_users_follows_from_the_periods_in_the_code() -> None:
    rows = {row[0]: row[1] for row in cells(sections("administrators.md")["What it asks of Slurm"]) if len(row) == 3}
    quiet_s, stirred_s = job_watch.PERIOD_S * job_watch.IDLE, job_watch.PERIOD_S
    assert rows["follow one quiet job each (`--follow`, `kit logs -f`)"] == f"{500 / quiet_s:.0f}"
    assert rows["have `kit status --watch` open"] == f"{500 / quiet_s:.0f}"
    assert rows["follow a job each that starts or ends at this very moment"].startswith(f"{500 / stirred_s:.0f}, for half a minute")
    assert job_watch.STIRRED_S == 30 and job_watch.PATIENCE_S == 300
    assert rows["submit a job an hour each"] == f"{500 * 5 / 3600:.1f}"


def test_the_module_file_is_one() -> None:
    """As the Tcl of environment modules reads it: the magic cookie, then commands with words."""
    first, *lines = block("tcl", "#%Module", PAGES["administrators.md"]).splitlines()
    assert re.fullmatch(r"#%Module\d\.\d", first)
    commands = {"module-whatis": 1, "conflict": 1, "prepend-path": 2, "setenv": 2}
    words = [shlex.split(line) for line in lines]
    assert all(len(rest) == commands[name] for name, *rest in words)
    assert ["prepend-path", "PATH", "/opt/kit/only"] in words


def test_the_module_puts_kit_on_the_path_and_no_python(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("kit", "python3"):
        (tmp_path / "bin" / name).touch()
    page = PAGES["administrators.md"]
    (link,) = [line for line in block("bash", "venv /opt/kit", page).splitlines() if "ln -s" in line]
    subprocess.run(["bash", "-c", link.replace("/opt/kit", shlex.quote(str(tmp_path)))], check=True)
    (folder,) = re.findall(r"^prepend-path PATH /opt/kit/(.*)$", page, re.MULTILINE)
    assert [path.resolve() for path in (tmp_path / folder).iterdir()] == [tmp_path / "bin/kit"]


def test_the_ports_are_those_of_the_scripts() -> None:
    text = sections("administrators.md")["Network"]
    network, jupyter = ((ROOT / "launch/scripts" / name).read_text() for name in ("lib/network.sh", "jupyter.sh"))
    assert "from 61000 to 64999" in text and "61000" in network and "4000" in network
    (row,) = [row for row in cells(text) if "--jupyter" in row[0]]
    assert row[2] == "one of the ports that jobs use" and 'port="$(net::port ' in jupyter


# ---------------------------------------------------------------- distribution.md


def test_the_parallel_file_systems_are_those_of_the_page() -> None:
    (listed,) = re.findall(r"a file system that df calls (.*?) for a parallel one", PAGES["distribution.md"], re.DOTALL)
    assert sorted(re.findall("`(.*?)`", listed)) == sorted(staging.PARALLEL)


# ---------------------------------------------------------------- variables.md


def test_the_page_on_variables_has_those_of_kit_that_pages_and_programs_use() -> None:
    programs = [path.read_text() for suffix in ("py", "yaml") for path in (ROOT / "train").rglob(f"*.{suffix}")]
    pages = [page for name, page in PAGES.items() if name != "adding-a-runtime.md"]  # its lines are kit's own
    used = {name for text in [*programs, *pages] for name in re.findall(r'(?:\$\{?|environ\[")(KIT_[A-Z_]+)', text)}
    assert {"KIT_EVENTS", "KIT_PROGRESS", "KIT_RUN_DIR"} <= used
    assert used - {*re.findall("`(KIT_[A-Z_]+)`", PAGES["variables.md"])} == set()


# ---------------------------------------------------------------- laptop.md


def listed_commands(before: str) -> set[str]:
    """Those of the sentence of the page that goes on with these words."""
    sentence = PAGES["laptop.md"].partition(before)[0].rpartition(". ")[2].rpartition("\n\n")[2]
    return {words.split()[0] for words in re.findall("`(?:kit )?(.*?)`", sentence)}


def test_the_page_names_the_commands_of_a_run_elsewhere_and_those_that_outlive_a_connection() -> None:
    assert listed_commands(" find the\ncluster of a run by themselves") == set(where.OF_A_RUN)
    assert listed_commands(" do not depend on the connection") == {*forward.LASTING, "logs"}


# ---------------------------------------------------------------- coming-from.md


def kits_side() -> list[str]:
    """What stands as code in the right column of each table."""
    rows = [row for text in sections("coming-from.md").values() for row in cells(text)]
    assert len(rows) > 50
    return [code for row in rows for code in re.findall(r"`([^`]+)`", row[-1])]


@pytest.mark.parametrize("code", [code for code in kits_side() if code.startswith("kit ") and code != "kit build docker://NAME"])
def test_the_commands_for_people_from_other_tools_are_understood(code: str) -> None:
    understood(code)


def test_the_keys_for_people_from_other_tools_exist() -> None:
    known = {*jobs.KEYS, *profiles.KEYS}
    lines = [code for code in kits_side() if re.match(r"[a-z_]+:( |$)", code)]
    assert len(lines) > 30
    assert {key for line in lines for key in yaml.safe_load(line.replace("...", "A: 1")) if key not in known} == set()


def test_the_job_of_submitit_has_as_many_cpus_on_each_node_under_either_launcher(kit, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (row,) = [row for row in cells(sections("coming-from.md")["submitit"]) if "cpus_per_task" in row[0]]
    theirs, *ours = (eval(f"dict({code.strip('`')})") for cell in row for code in re.findall("`.*?`", cell))
    assert len(ours) == 2 and [job.get("launcher") for job in ours] == ["srun", None]
    for job in ours:
        (tmp_path / "job.yaml").write_text(yaml.safe_dump({"command": "train.py", **job}))
        shown = kit("submit", "job.yaml", "--dry-run", cwd=tmp_path).stdout
        tasks, cpus = (int(re.findall(rf"^#SBATCH --{option}=(\d+)$", shown, re.MULTILINE)[0]) for option in ("ntasks-per-node", "cpus-per-task"))
        assert tasks * cpus == theirs["tasks_per_node"] * theirs["cpus_per_task"]
        assert f"\nNNODES={theirs['nodes']}\nNPROC_PER_NODE={theirs['tasks_per_node']}\n" in shown


# ---------------------------------------------------------------- scripts

SCRIPTS = [
    pytest.param(text, id=f"{name}: {number}")
    for name, page in PAGES.items()
    for number, text in enumerate(text for text in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if re.search(r"^script:", text, re.MULTILINE))
]


def test_the_pages_show_scripts_only_as_whole_jobs() -> None:
    assert len(SCRIPTS) >= 7
    pages = [page for name, page in PAGES.items() if name != "checks.md"]  # which quotes messages
    assert [code for page in pages for code in re.findall(r"`(script: [^`|]+)`", page)] == []


@pytest.mark.parametrize("text", SCRIPTS)
def test_the_script_of_a_page_has_a_rank_for_each_gpu_or_starts_them_itself(text: str, kit, tmp_path: Path) -> None:
    job = {**yaml.safe_load(text), "gpus_per_node": 8, "processes_per_node": 8}
    job.pop("image", None)  # which is not here
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    shown = kit("submit", "job.yaml", "--dry-run", cwd=tmp_path).stdout
    assert "\nNPROC_PER_NODE=8\n" in shown
    runs_once_on_each_node = "\nKIT_LAUNCHER=spawn\n" in shown
    assert runs_once_on_each_node == bool(re.search("NPROC_PER_NODE|CUDA_VISIBLE_DEVICES", job["script"]))


# ---------------------------------------------------------------- your-line.md

LINES = sections("your-line.md")
JOBS = [
    pytest.param(text, id=f"{heading}: {number}")
    for heading in LINES
    for number, text in enumerate(re.findall(r"```yaml\n(.*?)```", LINES[heading], re.DOTALL))
]


@pytest.mark.parametrize("text", JOBS)
def test_a_job_of_the_page_on_lines_is_a_job(text: str, kit, tame_path: Path) -> None:
    for name in ("train.py", "main.py"):
        (tame_path / name).touch()
    (tame_path / "job.yaml").write_text(text)
    assert kit("submit", "job.yaml", "--dry-run", cwd=tame_path).stdout


def old_lines() -> dict[str, str]:
    """The last line of each "today", where kit knows its first words."""
    lines = {heading: block("bash", "", text).splitlines()[-1] for heading, text in LINES.items() if "```bash" in text}
    return {heading: line for heading, line in lines.items() if not heading.startswith("python main.py")}


@pytest.mark.parametrize(("heading", "line"), old_lines().items(), ids=list(old_lines()))
def test_an_old_line_as_the_command_is_answered_with_the_launcher_of_the_page(heading: str, line: str, kit, tame_path: Path) -> None:
    (tame_path / "train.py").touch()
    (tame_path / "job.yaml").write_text(yaml.safe_dump({"command": line}))
    done = kit("submit", "job.yaml", "--dry-run", cwd=tame_path, check=False)
    job = yaml.safe_load(block("yaml", "", LINES[heading]))
    launcher = job.get("launcher", "torchrun") if "command" in job else "torchrun"
    if heading == "Lightning's Trainer":  # whose line is any srun's, and runs under both
        launcher = "srun"
    assert done.returncode == 2 and "but starting ranks is the job of the launcher\n  fix: write `command: train.py" in done.stderr
    assert f"and `launcher: {launcher}`" in done.stderr
