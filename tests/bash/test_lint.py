"""The bash is lint-clean as it stands and as it is rendered, and keeps to the rules of CONTRIBUTING.md."""

from __future__ import annotations

import itertools
import re
import subprocess
from pathlib import Path

import pytest
from kit.config import plugins
from kit.config.mount_list import Mount
from kit.plan.render import render

from plans import plan_of
from samples import HOSTILE_NAME, ROOT

SCRIPTS = ROOT / "launch" / "scripts"


def is_bash(path: Path) -> bool:
    if not path.is_file() or path.suffix not in ("", ".sh", ".bash"):
        return False
    first = path.open("rb").readline()
    return path.suffix != "" or (first.startswith(b"#!") and b"sh" in first)


def relative(paths: list[Path]) -> list[str]:
    return sorted(str(path.relative_to(ROOT)) for path in paths)


OURS = relative([path for path in SCRIPTS.rglob("*") if is_bash(path)])
FOLDERS = (".ci", "bench", "containers", "docs", "env", "launch", "tests", "train")
GENERATED = ROOT / "tests" / "golden"  # the same is generated, and linted, below
ALL = relative([path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if is_bash(path) and GENERATED not in path.parents])


def linted_by_make() -> list[str]:
    """The files that `make check` gives to shfmt and shellcheck."""
    patterns = re.search(r"(?m)^SHELL_SCRIPTS = (.+)$", (ROOT / "Makefile").read_text())
    assert patterns, "the Makefile names no SHELL_SCRIPTS"
    return sorted(str(path.relative_to(ROOT)) for pattern in patterns[1].split() for path in ROOT.glob(pattern))


def test_the_scripts_are_found() -> None:
    assert {"launch/scripts/run_script.sh", "launch/scripts/local/srun", "launch/scripts/local/scontrol"} <= set(OURS)
    assert {"tests/bash/stubs/enroot", ".ci/run", *OURS} <= set(ALL)


def test_make_check_looks_at_every_bash_file_once() -> None:
    """Which is seven CPU seconds, so that no test does it again."""
    left_out, strange = set(ALL) - set(linted_by_make()), set(linted_by_make()) - set(ALL)
    assert (left_out, strange) == (set(), set()), "add what is left out to SHELL_SCRIPTS in the Makefile"


def combinations() -> list[tuple[str, str, str, str, int]]:
    """Every runtime with every kind of preemption, each at another stage. Every other part as often as that gives."""
    launchers, stages = itertools.cycle(plugins.names("launchers")), plugins.names("stages")
    found = []
    for start, runtime in enumerate(plugins.names("runtimes")):
        for number, preempt in enumerate(plugins.names("preempt"), start):
            found.append((runtime, next(launchers), stages[number % len(stages)], preempt, (number - start) % 2))
    return found


def test_every_part_is_rendered_and_every_pair_that_can_matter() -> None:
    """A launcher's script holds nothing of the other parts; those of run_script.sh call each other."""
    runtimes, launchers, stages, preempts, spares = (set(column) for column in zip(*combinations()))
    assert (runtimes, launchers) == (set(plugins.names("runtimes")), set(plugins.names("launchers")))
    assert (stages, preempts) == (set(plugins.names("stages")), set(plugins.names("preempt")))
    assert {(row[0], row[3]) for row in combinations()} == set(itertools.product(runtimes, preempts))
    assert {(row[0], row[4]) for row in combinations()} == set(itertools.product(runtimes, spares))
    assert {(row[2], row[3]) for row in combinations()} == set(itertools.product(stages, preempts))


@pytest.mark.parametrize(("runtime", "launcher", "stage", "on_preempt", "spares"), combinations())
def test_rendered_scripts_are_clean(runtime: str, launcher: str, stage: str, on_preempt: str, spares: int, tmp_path: Path) -> None:
    plan = plan_of(
        name=HOSTILE_NAME,
        run_dir=f"/shared/{HOSTILE_NAME}",
        nodes=2,
        spares=spares,
        processes_per_node=4,
        gpus_per_node=4,
        runtime=runtime,
        launcher=launcher,
        image=f"/shared/{HOSTILE_NAME}.sqsh",
        fingerprint="0123456789abcdef",
        workdir=f"/shared/{HOSTILE_NAME}",
        mounts=(Mount(f"/shared/{HOSTILE_NAME}", "/data", True, "here"),),
        command=("train.py", HOSTILE_NAME, "a\nb"),
        env=(("GREETING", HOSTILE_NAME),),
        header=(("job-name", HOSTILE_NAME), ("exclusive", None)),
        stage=stage,
        on_preempt=on_preempt,
        remap_root=True,
    )
    # The files of lib/ are those of launch/scripts, which make check looks at.
    scripts = {name: text for name, text in render(plan).items() if "/" not in name}
    for name, text in scripts.items():
        (tmp_path / name).write_text(text)
    assert sorted(scripts) == sorted(["env.sh", "run_script.sh", f"{launcher}.sh"])
    # But for the comments of its header run_script.sh is the one that make check looks at, and so is a launcher's script.
    for name in ("run_script.sh", f"{launcher}.sh"):
        (source,) = (path for path in SCRIPTS.rglob(name) if path.parent.name != "lib")
        assert without_comments(scripts[name]) == without_comments(source.read_text())
    done = subprocess.run(["shellcheck", "env.sh"], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout + done.stderr == ""


def without_comments(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith("#")]


def numbered(names: list[str]) -> list[tuple[str, str]]:
    """Every line, with the place that an editor would open."""
    return [(f"{name}:{number}", line) for name in names for number, line in enumerate((ROOT / name).read_text().splitlines(), 1)]


def test_every_disabled_check_carries_its_reason() -> None:
    bare = [place for place, line in numbered(ALL) if re.search(r"#\s*shellcheck\s+disable=", line) and not re.search(r"disable=[A-Z0-9,]+\s+#\s*\w+", line)]
    assert bare == []


def test_every_script_starts_with_what_it_is() -> None:
    assert len(OURS) > 30
    for name in OURS:
        lines = [line for line in (ROOT / name).read_text().splitlines() if not line.startswith(("#!", "# shellcheck "))]
        place = str(Path(name).relative_to("launch/scripts"))
        own_names = {place, Path(name).name}
        match = re.match(r"# (\S+) - \w+", lines[0])
        assert match and match[1] in own_names, f"{name} starts with {lines[0]!r}"


def test_every_variable_of_kit_is_set_and_read() -> None:
    """shellcheck looks at one file, and knows nothing of the others that read a variable, or set it: see launch/scripts/.shellcheckrc."""
    code = "\n".join(re.sub(r"(?m)(^|\s)#.*", "", (ROOT / name).read_text()) for name in OURS)
    values = set(re.findall(r"KIT_\w+", (ROOT / "launch/kit/plan/render.py").read_text())) | {"KIT_LOOPBACK"}  # by env.sh; by kit run
    assigned = set(re.findall(r"(?m)(?:^|[\s;(])(KIT_\w+|[a-z]\w*)(?:\[[^]\n]*\])?\+?=", code))
    told = {"KIT_RUN", "KIT_STATE", "KIT_EXIT_CODE", "KIT_CAUSE"}  # to the command of `notify`
    other = {"lowerdir", "num_nodes", "strategy", "KIT_NODE"}  # a file system's option, what users write, and what a task of kit exec says
    unread = {name for name in assigned if not re.search(rf"(?<!\w){name}(?!\w|(?:\[[^]\n]*\])?\+?=)", code)}
    references = set(re.findall(r"local -n (\w+)", code))
    assert unread - references == told | other
    read = set(re.findall(r"\$\{[#!]?(KIT_\w+)", code))
    filled = set(re.findall(r"(?:read|mapfile|for|local|declare|printf -v|exec \{)[^;\n]*?\b(KIT_\w+)", code))
    assert read - assigned - filled - values == set()


def test_scripts_are_bash_and_nothing_else() -> None:
    code = [(place, line.partition(" #")[0]) for place, line in numbered(OURS) if not line.lstrip().startswith("#")]
    assert [place for place, line in numbered(OURS) if "\t" in line] == []
    assert [place for place, line in code if re.search(r"(^|[\s;&|(])eval\s", line)] == []
    assert [place for place, line in code if "<<" in line and "<<<" not in line] == [], "a here-document may hold another language"
    python = [line.strip() for _, line in code if re.search(r"\bimport\b", line) and "grep" not in line]
    assert len(python) == 2 and any("find_spec" in line for line in python) and any('version("torch")' in line for line in python)


# What does not change while it is read.
FIXED = {"/proc/self/cgroup", "/proc/cpuinfo"}


def test_no_file_of_the_kernel_is_read_line_by_line() -> None:
    """`read` goes back to the end of its line, and the kernel writes the file anew from there: if a line has become longer meanwhile, it reads
    another part of another line. Of 4,000 looks at the signals that a busy process handles, six saw none. (A file that a variable names is not
    seen here.)"""
    loops = [(place, match[1]) for place, line in numbered(OURS) if (match := re.search(r"\bdone\b.*<\s*\"?(/(?:proc|sys)/[^\"\s]*|\$\{kit_counter\})", line))]
    assert {file for _, file in loops} == FIXED, loops
