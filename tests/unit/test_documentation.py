"""What the documentation says is true: keys, options, files, links and examples."""

from __future__ import annotations

import functools
import gc
import html
import itertools
import os
import re
import runpy
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from kit.base.errors import Problems
from kit.cli import entry
from kit.config import job as jobs
from kit.config import mount_list, plugins, profiles, yaml_source

from samples import ROOT

README = (ROOT / "README.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()


pytestmark = pytest.mark.tame


def block(language: str, containing: str, page: str = README) -> str:
    return next(text for text in re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL) if containing in text)


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 120


def test_the_first_job_is_valid_and_gives_the_lines_that_are_shown(kit, tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images/pytorch.sif").write_bytes(b"x")
    (tmp_path / "data").mkdir()
    (tmp_path / "train.py").touch()
    (tmp_path / "job.yaml").write_text(block("yaml", "name: first").replace("/shared", str(tmp_path)))
    made = kit("submit", "job.yaml", "--dry-run").stdout.replace(str(tmp_path), "/shared")
    assert "#SBATCH --gpus-per-node=8\n" in made
    shown = block("bash", "KIT_RUNTIME").splitlines()
    assert len(shown) <= 15
    assert [line for line in shown if line not in made.splitlines()] == []


def test_the_job_of_the_page_on_job_files_is_the_readmes() -> None:
    page = (ROOT / "docs/job-file.md").read_text()
    short, first = (yaml.safe_load(block("yaml", "name: first", text)) for text in (page, README))
    assert {**short, "image": first["image"]} == first


PAGES = {path.name: path.read_text() for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]}
COMMANDS = [
    pytest.param(line, id=f"{name}: {line}")
    for name, page in PAGES.items()
    for line in re.findall(
        r"^(?:\$ |    )?(kit \S.*)$",
        "\n".join([*re.findall(r"```\w*\n(.*?)```", page, re.DOTALL), *re.findall(r"^    kit .*$", page, re.MULTILINE)]),
        re.MULTILINE,
    )
]


def test_the_pages_show_commands() -> None:
    assert len(COMMANDS) > 75


tree = functools.cache(entry.tree)


def understood(line: str) -> None:
    """Raise where kit would not understand a command line, which may have a comment or be a part of one of the shell's."""
    words = shlex.split(re.split(r"\s{2,}[#(]| # ", line)[0])[1:]
    words = list(itertools.takewhile(lambda word: word not in ("&&", "|", ">"), words))
    with click.Context(tree(), info_name="kit") as context:
        name, command, rest = tree().resolve_command(context, words)
        while rest and rest[0] in getattr(command, "commands", {}):
            name, command, rest = rest[0], command.commands[rest[0]], rest[1:]
        command.make_context(name, list(rest), parent=context)


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_line_of_the_pages_is_understood(line: str) -> None:
    understood(line)


def test_every_command_in_a_sentence_of_the_pages_is_understood() -> None:
    """Where it is only named, its arguments are left out."""
    lines = {line for page in PAGES.values() for line in re.findall(r"`(kit [^`\n]+)`", re.sub(r"```.*?```", "", page, flags=re.DOTALL))}
    assert len(lines) > 150
    wrong = []
    for line in sorted(lines - {"kit COMMAND --help", "kit images gc --nodes"}):
        try:
            understood(line.replace("\\|", "|"))
        except Exception as error:  # Typer's own click, or the other one
            wrong += [f"{line}: {error}"] if type(error).__name__ != "MissingParameter" else []
    assert wrong == []


def test_the_picture_of_the_flow_is_of_its_source() -> None:
    """After a change of docs/flow.dot: make picture."""
    labels = re.findall(r'\[label="(.*?)"', (ROOT / "docs/flow.dot").read_text())
    shown = re.findall(r"<text [^>]*>(.*?)</text>", (ROOT / "docs/flow.svg").read_text())
    lines = [line for label in labels for line in re.split(r"\\[nl]", label) if line]
    assert sorted(line for line in lines if line not in [html.unescape(text) for text in shown]) == []


def test_the_shown_error_is_the_real_one(kit, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "job.yaml").write_text("command: train.py\n\n\nluncher: x\n\n\nslurm:\n  mem: 1G\n  mem-per-cpu: 1G\n")
    assert kit("submit", "job.yaml", check=False).stderr == block("text", "luncher", PAGES["job-file.md"])


@pytest.mark.parametrize("document", [README, CONTRIBUTING], ids=["README", "CONTRIBUTING"])
def test_links_and_named_files_exist(document: str) -> None:
    targets = re.findall(r"\]\(((?!http)[^)]+)\)", document)
    assert targets, "the document links to no file"
    for target in targets:
        assert (ROOT / target).exists(), target


def test_every_file_of_the_map_exists() -> None:
    """Of the package and of the scripts by their own names, as the map shows them."""
    words = re.findall(r"`([\w.-]+/[\w./-]*|\w+\.(?:py|sh))`", CONTRIBUTING)
    floors = re.findall(r"^  (\w+)(?:/|\.py)  ", CONTRIBUTING, re.MULTILINE)
    tops = re.findall(r"^([\w/]+/) ", CONTRIBUTING, re.MULTILINE)
    places = ("", "launch/kit", "launch/scripts", "tests/unit")
    named = {word for word in [*words, *tops] if "NAME" not in word} - {"tests/cluster/debs/"}  # made by who has them
    assert {word for word in named if not any((ROOT / place / word).exists() for place in places)} == set()
    assert floors == list(reversed(layers()))


def layers() -> list[str]:
    """The packages of kit, as import-linter has them: the highest first."""
    text = (ROOT / "pyproject.toml").read_text().partition("\nlayers = [")[2].partition("]")[0]
    return re.findall(r'^  "(\w+)"', text, re.MULTILINE)


def test_every_runtime_is_in_the_table() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \| [^`|]", PAGES["tested.md"], re.MULTILINE)
    assert sorted(rows) == plugins.names("runtimes")


def test_the_generic_profile_is_what_is_assumed_without_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from kit.base.errors import Problems

    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    problems = Problems()
    assert profiles.load(None, "", problems) == replace(profiles.load("generic", "", problems), description="", text="")
    assert not problems.found


def test_make_targets_named_in_the_documents_exist() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:`|^)make ([a-z0-9-]+)", README + CONTRIBUTING, re.MULTILINE)) <= targets


@pytest.mark.parametrize("job", sorted(path.name for path in (ROOT / "train").glob("*.yaml")))
def test_every_training_job_is_valid(job: str, kit) -> None:
    assert kit("submit", str(ROOT / "train" / job), "--dry-run").stdout


def test_every_failure_in_the_table_has_its_test() -> None:
    rows = re.findall(r"^\| .* \| `(tests/\S+)::(test_\w+)` \|$", (ROOT / "docs/tested.md").read_text(), re.MULTILINE)
    assert len(rows) >= 29
    for file, name in rows:
        assert f"def {name}(" in (ROOT / file).read_text(), f"{file}::{name}"


def test_the_reference_is_the_code() -> None:
    """After a change of commands, options or keys: make golden, and read the difference."""
    made = runpy.run_path(str(ROOT / "docs/reference.py"))
    gc.enable()  # cli.py leaves that to main()
    if os.environ.get("KIT_UPDATE_GOLDEN") == "1":
        made["PAGE"].write_text(made["page"](), encoding="utf-8")
    page = made["PAGE"].read_text()
    assert page == made["page"]()
    for name, command in _commands().items():
        for parameter in command.params:
            for spelling in [*parameter.opts, *parameter.secondary_opts] if parameter.param_type_name == "option" else []:
                assert re.search(rf"`{spelling}[ `]", page), f"{name} {spelling}"


def test_the_reference_promises_sbatchs_options_of_the_commands_that_have_them() -> None:
    page = (ROOT / "docs/reference.md").read_text()
    promised = re.findall(r"(?m)^### `(kit \w+).*`\n\n.*sbatch's common options", page)
    assert promised == [name for name in re.findall(r"(?m)^### `(kit \w+)", page) if any("-A" in item.opts for item in _commands()[name].params)]


def _commands() -> dict[str, Any]:
    """All of them that a user may call, by what is typed."""
    root = entry.tree()
    gc.enable()
    found = {"kit": root}
    for name, command in root.commands.items():
        found |= {f"kit {name}": command, **{f"kit {name} {inner}": item for inner, item in getattr(command, "commands", {}).items()}}
    shown = {name: command for name, command in found.items() if not command.hidden}
    assert {"kit submit", "kit images gc"} <= set(shown), "the commands were not found"
    return shown


def test_every_command_argument_and_option_says_what_it_is() -> None:
    for name, command in _commands().items():
        assert (command.help or "").strip(), f"{name} has no help"
        for parameter in command.params:
            assert (parameter.help or "").strip(), f"{name}: {parameter.name} has no help"


def test_every_key_says_what_it_is() -> None:
    assert all(facts.meaning.strip() for facts in jobs.KEYS.values())
    assert all(facts.meaning.strip() for facts in profiles.KEYS.values())


def test_every_fact_at_the_head_of_a_plugin_is_listed_once() -> None:
    listed = re.findall(r"^    # ([a-z-]+):", plugins.__doc__ or "", re.MULTILINE)
    assert len(listed) == len(set(listed)) > 10
    for kind in ("runtimes", "launchers", "stages", "preempt"):
        for name in plugins.names(kind):
            assert set(plugins.find(kind, name, "").facts) <= set(listed), f"{kind}/{name}.sh: list it in launch/kit/config/plugins.py"


def test_every_command_is_explained_outside_of_the_reference() -> None:
    pages = README + "".join(path.read_text() for path in (ROOT / "docs").glob("*.md") if path.name != "reference.md")
    for name in _commands():
        assert re.search(rf"\b{name}\b", pages), f"{name} is neither in the README nor in docs/"


def test_every_mount_of_the_pages_is_one() -> None:
    pages = {path.name: path.read_text() for path in (ROOT / "docs").glob("*.md")}
    shown = [(name, line) for name, page in pages.items() for line in re.findall(r"mounts: \[[^\]\n]+\]", page)]
    assert len(shown) > 8
    for name, line in shown:
        problems = Problems()
        root = yaml_source.compose(line, name)
        assert root and mount_list.parse(yaml_source.mapping(root, name, problems)["mounts"], problems)
        assert problems.found == [], line


def test_links_between_pages_lead_somewhere() -> None:
    pages = sorted((ROOT / "docs").glob("*.md"))
    links = [(page, target) for page in pages for target in re.findall(r"\]\(((?!http)[^)#]+)(?:#[^)]*)?\)", page.read_text())]
    assert links, "no page links to another file"
    assert [f"{page.name}: {target}" for page, target in links if not (page.parent / target).exists()] == []
