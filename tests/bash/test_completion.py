"""The Tab key in real shells: what becomes of a line that is typed and not finished."""

from __future__ import annotations

import functools
import json
import os
import pty
import re
import select
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Optional

import pytest
from kit.cli import entry, shells

HOSTILE = "my job's $(id).yaml"
RUNS = {"4711": ("first", ""), "4712": ("second one", "FAILED"), "4713": ("first", "")}
START = {
    "bash": (
        ["bash", "--noprofile", "--norc", "-i"],
        "PS1=; source <(kit completion bash); alias k=kit; complete -o default -F _kit k; words() { printf '<%s>' \"$@\"; printf 'END\\n'; }\n",
    ),
    "zsh": (
        ["zsh", "-f", "-i"],
        'PS1=; bindkey -e; source <(kit completion zsh); alias k=kit; words() { print -rn -- "${(@)${(@)argv/#/<}/%/>}"; print END; }\n',
    ),
}

# kit offers nothing where a busy machine takes more than two seconds for its start; so the shells here ask one that takes its time.
PATIENT = "from kit.cli import completion, main, shells; shells.LIMIT_S, completion.SLURM_S = 60, 30; main()"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with jobs, images and a history, and a Slurm that has two partitions."""
    folder = tmp_path_factory.mktemp("project")
    for name in ("train.py", "train.yaml", "notes.txt", HOSTILE, "images/base-1.sqsh", "images/base-1.json", "jobs/deep.yaml", "home/mine.yaml", ".hidden.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("{}")
    (folder / "images/base-1.json").write_text('{"file": "base-1.sqsh", "size": 2, "sha256": ""}')
    (folder / "images/base.json").symlink_to("base-1.json")
    (folder / "images/based-on-what-is-gone.json").symlink_to("/purged/base-2.json")
    (folder / "state/kit").mkdir(parents=True)
    with (folder / "state/kit/runs.jsonl").open("w") as file:
        for number, (name, state) in RUNS.items():
            (folder / "runs" / number).mkdir(parents=True)
            file.write(json.dumps({"id": number, "folder": str(folder / "runs" / number), "name": name, "shape": "2x8", "created_s": 1, "state": state}) + "\n")
    for name in ("bin", "patient"):
        (folder / name).mkdir()
    _program(folder / "bin/kit", f"exec '{sys.executable}' -m kit \"$@\"")
    _program(folder / "patient/kit", f"exec '{sys.executable}' -c '{PATIENT}' \"$@\"")
    _program(folder / "bin/sinfo", "printf '%s\\n' gpu gpu cpu")
    return folder


def _program(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


def _environment(project: Path) -> dict[str, str]:
    path = f"{project}/bin:{os.environ['PATH']}"
    here = {"PATH": path, "HOME": f"{project}/home", "XDG_STATE_HOME": f"{project}/state", "XDG_CONFIG_HOME": f"{project}/config"}
    return {**os.environ, **here, "TERM": "dumb", "LC_ALL": "C.UTF-8", "ZDOTDIR": f"{project}/home", "HISTFILE": ""}


def _of_shell(project: Path) -> dict[str, str]:
    environment = _environment(project)
    return {**environment, "PATH": f"{project}/patient:{environment['PATH']}"}


class Shell:
    """A shell at a terminal, asleep until somebody types."""

    def __init__(self, name: str, project: Path, start: str = "") -> None:
        command, usual = START[name]
        self.terminal, side = pty.openpty()
        self.process = subprocess.Popen(command, stdin=side, stdout=side, stderr=side, cwd=project, env=_of_shell(project), start_new_session=True)
        os.close(side)
        self.type((start or usual) + "words ready\n")

    def type(self, keys: str) -> str:
        """What the shell prints for it, up to END."""
        os.write(self.terminal, keys.encode())
        said, patience_s = "", time.monotonic() + 120
        while not re.search(r">END\r?\n", said):
            assert select.select([self.terminal], [], [], max(0.0, patience_s - time.monotonic()))[0], f"the shell says nothing more after {said!r}"
            said += os.read(self.terminal, 65536).decode("utf-8", "replace")
        return said

    def words(self, line: str) -> list[str]:
        """The words of a line, with the Tab key pressed at its end, as the shell hands them to a command."""
        said = self.type(f"{line}\t\x01words \x05 \n")  # Ctrl-A: to the start of the line
        found = re.findall(r"<([^<>]*)>", said[re.search(r"<k(it)?>", said).start() :])
        assert "Traceback" not in said
        return found

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.terminal)


@pytest.fixture(scope="module", params=list(START))
def shell(request: pytest.FixtureRequest, project: Path):
    if not shutil.which(request.param):
        pytest.skip(f"{request.param} is not installed")
    found = Shell(request.param, project)
    yield found
    found.end()


# Where shells differ: quotes, =, :, folders, ~, and what follows a word that is whole.
FINISHED = {
    "kit sub": ["kit", "submit"],
    "kit submit my": ["kit", "submit", HOSTILE],
    "kit submit 'train.y": ["kit", "submit", "train.yaml"],
    "kit submit job\t": ["kit", "submit", "jobs/deep.yaml"],  # the folder first
    "kit submit ~/m": ["kit", "submit", "{home}/mine.yaml"],
    "kit submit train.py --slurm part\tg": ["kit", "submit", "train.py", "--slurm", "partition=gpu"],
    "kit submit train.py --slurm=partition=g": ["kit", "submit", "train.py", "--slurm=partition=gpu"],
    "kit submit train.py --after any:sec": ["kit", "submit", "train.py", "--after", "any:second one"],
    "k logs sec": ["k", "logs", "second one"],  # an alias
    "kit diff 4712 sec": ["kit", "diff", "4712", "second one"],
    "A=1 kit logs sec": ["kit", "logs", "second one"],
    "kit cancel sec": ["kit", "cancel", "sec"],  # it has ended
}


@pytest.mark.parametrize("line", FINISHED)
def test_tab_finishes_a_word_if_it_can(shell: Shell, project: Path, line: str) -> None:
    wanted = [word.format(home=f"{project}/home") if "{home}" in word else word for word in FINISHED[line]]
    assert shell.words(line) == wanted


def test_zsh_loads_completion_from_a_file_in_fpath(project: Path, tmp_path: Path) -> None:
    if not shutil.which("zsh"):
        pytest.skip("zsh is not installed")
    wrote = subprocess.run(["kit", "completion", "zsh"], env=_environment(project), capture_output=True, text=True, check=True)
    (tmp_path / "_kit").write_text(wrote.stdout)
    start = f"fpath=({shlex.quote(str(tmp_path))} $fpath); autoload -Uz compinit; compinit -u -D"
    shell = Shell("zsh", project, start=START["zsh"][1].replace("source <(kit completion zsh)", start))
    try:
        assert shell.words("kit logs sec") == ["kit", "logs", "second one"]  # the first Tab loads the file
        assert shell.words("kit sub") == ["kit", "submit"]
    finally:
        shell.end()


# What is offered does not depend on the shell. Where it is nothing, the shell completes names of files.
OFFERED = {
    "kit images g": ["gc"],
    "kit submit ": [],
    "kit submit .hid": [],
    "kit submit notes": [],
    "kit submit --slurm qos=g": [],
    "kit submit train.py --runti": ["--runtime"],
    "kit submit train.py --runtime ": ["apptainer", "auto", "container-engine", "docker", "enroot", "none", "podman", "pyxis", "singularity"],
    "kit submit train.py --runtime=ap": ["--runtime=apptainer"],
    "kit nonsense --x": [],
    "kit submit train.py --launcher t": ["tensorflow", "torchrun"],
    "kit submit train.py --stage ": ["auto", "local", "none", "sbcast"],
    "kit submit train.py --on-preempt ": ["checkpoint", "none", "requeue"],
    "kit submit train.py --code ": ["live", "snapshot"],
    "kit submit train.py --cluster ": ["azure", "efa", "ethernet", "gb200", "gcp", "generic", "infiniband", "omni-path", "slingshot"],
    "kit submit train.py --cluster ./train": [],
    "kit submit train.py --image ba": ["base"],
    "kit submit train.py --image images/": [],
    "kit submit train.py --output ": [],
    "kit submit train.py --slurm no-": ["no-kill", "no-requeue"],
    "kit submit train.py --slurm partition=": ["partition=cpu", "partition=gpu"],
    "kit submit train.py -- note": [],
    "kit submit train.py --nodes 2 --nod": ["--nodelist"],  # --nodes is given already
    "kit submit train.py --env A=1 --en": ["--env"],  # may be given again
    "kit submit train.py --remap": ["--remap-root"],
    "kit status 471": ["4711", "4712", "4713"],
    "kit status 471 --ta": ["--task"],
    "kit status 4711 ": [],  # it takes one
    "kit build --device ": ["cpu", "gpu"],
    "kit build --engine ": ["apptainer", "docker", "enroot", "podman"],
    "kit build te": ["tensorflow"],
    "kit completion ": ["bash", "fish", "zsh"],
    "kit runs --state NODE": ["NODE_FAIL"],
    "kit --ver": ["--version"],
    "/opt/venv/bin/kit stat": ["status"],
    "kit compl": ["completion"],
}


tree = functools.lru_cache(maxsize=None)(entry.tree)


def offered(line: str) -> list[str]:
    """What kit says to a shell whose cursor is at the end of this line."""
    *before, current = line.split(" ")
    shell = shells.SHELLS["zsh"](tree(), {}, "kit", shells.VARIABLE)
    return [item.value for item in shell.get_completions(before[1:], current)]


@pytest.mark.parametrize("line", OFFERED)
def test_what_is_offered(project: Path, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    monkeypatch.chdir(project)
    for name, value in _environment(project).items():
        monkeypatch.setenv(name, value)
    assert sorted(offered(line)) == sorted(OFFERED[line])


@pytest.mark.parametrize(
    ("asked", "command"),
    [
        ({"_TYPER_COMPLETE_ARGS": "kit run"}, ""),  # or kit runs
        ({"_TYPER_COMPLETE_ARGS": "kit run "}, "run"),
        ({"COMP_WORDS": "k\nrun\n", "COMP_CWORD": "2"}, "run"),
        ({"COMP_WORDS": "k\nrun\njob.yaml", "COMP_CWORD": "1"}, ""),
    ],
)
def test_other_commands_are_loaded_only_while_the_command_is_typed(monkeypatch: pytest.MonkeyPatch, asked: dict[str, str], command: str) -> None:
    for name, value in asked.items():
        monkeypatch.setenv(name, value)
    assert shells.command_before_the_cursor() == command


def test_every_command_and_option_can_be_completed(project: Path) -> None:
    """Walks all of them: none raises, and each is offered itself."""
    for name, command in tree().commands.items():
        assert name in offered(f"kit {name}")
        for option in command.params:
            if option.param_type_name == "option":
                for spelling in [*option.opts, *option.secondary_opts]:
                    assert spelling in offered(f"kit {name} {spelling if spelling.startswith('--') else '-'}")
                    offered(f"kit {name} {spelling} ")


def test_fish_asks_and_shows_what_it_means(project: Path) -> None:
    if not shutil.which("fish"):
        pytest.skip("fish is not installed")
    lines = ["kit submit my", "kit submit train.py --slurm=partition=g", "kit why 4712", "kit submit ~/m"]
    script = "kit completion fish | source\n" + "".join(f"complete -C '{line}'; echo\n" for line in lines)
    done = subprocess.run(["fish", "--no-config", "-c", script], cwd=project, env=_of_shell(project), capture_output=True, text=True, timeout=120)
    assert done.stdout == (f"{HOSTILE}\n\n--slurm=partition=gpu\n\n4712\tsecond one 2x8 FAILED\n\n~/mine.yaml\n\n"), done.stderr


def answer(project: Path, line: str) -> tuple[list[str], float, str]:
    start = time.monotonic()
    asked = {"_KIT_COMPLETE": "complete_fish", "_TYPER_COMPLETE_FISH_ACTION": "get-args", "_TYPER_COMPLETE_ARGS": line}
    environment = {**_environment(project), **asked}
    done = subprocess.run(["kit"], cwd=project, env=environment, capture_output=True, text=True, timeout=120)
    return [said.split("\t")[0] for said in done.stdout.splitlines()], time.monotonic() - start, done.stderr


@pytest.mark.parametrize("sinfo", ["exit 1", "trap '' TERM; sleep 90 & wait; sleep 90", None])
def test_a_slurm_that_does_not_answer_is_silence_after_a_second(project: Path, tmp_path: Path, sinfo: Optional[str]) -> None:
    shutil.copytree(project, tmp_path / "p", symlinks=True)
    if sinfo is None:
        (tmp_path / "p/bin/sinfo").unlink()
    else:
        _program(tmp_path / "p/bin/sinfo", sinfo)
    found, seconds, errors = answer(tmp_path / "p", "kit submit train.py --slurm partition=")
    assert (found, errors) == ([], "")
    assert seconds < 45, "Tab takes the prompt away"  # 1 s, and the start of kit on a busy machine; without a limit 90 s and more


def test_runs_are_offered_newest_first_and_to_cancel_those_that_have_not_ended(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", f"{project}/state")
    found = {command: offered(f"kit {command} ") for command in ("rerun", "cancel")}
    assert found == {"rerun": ["4713", "4712", "4711", "first", "second one"], "cancel": ["4713", "4711", "first"]}


@pytest.mark.parametrize("damage", [None, b"\xff\xfe", b'{"id": 3}\n[]\n"x"\n'], ids=["a folder", "no text", "other keys"])
def test_a_damaged_history_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Optional[bytes]) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    history = tmp_path / "kit/runs.jsonl"
    history.parent.mkdir()
    if damage is None:
        history.mkdir()
    else:
        history.write_bytes(damage)
    assert offered("kit status ") == []


def test_a_file_system_that_does_not_answer_is_silence_after_two_seconds(project: Path, tmp_path: Path) -> None:
    """A pipe that nobody writes to keeps its reader waiting, as a dead file server does."""
    shutil.copytree(project, tmp_path / "p", symlinks=True)
    history = tmp_path / "p/state/kit/runs.jsonl"
    history.unlink()
    os.mkfifo(history)
    found, seconds, errors = answer(tmp_path / "p", "kit status ")
    assert (found, errors) == ([], "") and seconds < 60  # without a limit for ever


def test_an_unknown_shell_is_named(kit) -> None:
    done = kit("completion", "fsh", check=False)
    assert (done.returncode, done.stderr) == (2, "kit: no completion for 'fsh'\n  fix: did you mean 'fish'?\n")
