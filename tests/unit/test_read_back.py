"""What is read back of a run is believed as far as it is what kit writes: by one table of kinds, and by one way to open files."""

from __future__ import annotations

import json
import os
import re
from dataclasses import is_dataclass
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kit.base.errors import KitError, UsageError
from kit.config import image_files
from kit.files import dockerignore, safe_read, typed_json
from kit.plan.plan import Plan
from kit.plan.run_paths import RunPaths
from kit.registry import oci
from kit.runs import diff, history, job_chain, run_dir
from kit.runs.run_record import RunRecord
from kit.slurm import hostlist, task_numbers

from plans import recorded
from samples import ROOT

KIT = ROOT / "launch/kit"


def kinds(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a type that a record has."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return {int: st.integers(1, 1_000_000), str: st.sampled_from(["0-3", "1,5-7%2"])}[arguments[0]]
    if origin is Union:
        return st.none() | kinds(arguments[0])
    if origin is tuple:
        items = map(kinds, arguments)
        return st.lists(kinds(arguments[0]), max_size=3).map(tuple) if arguments[-1] is Ellipsis else st.tuples(*items)
    if hasattr(kind, "_fields") or is_dataclass(kind):
        return st.builds(kind, **{name: kinds(item) for name, item in typed_json._kinds(kind).items()})
    text = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
    return {str: text, int: st.integers(0, 10**9), float: st.floats(-1e10, 1e10), bool: st.booleans()}[kind]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(kinds(Plan))
def test_a_plan_is_read_back_as_it_was_written(plan: Plan) -> None:
    faults: list[str] = []
    written = json.loads(json.dumps(typed_json.plain({"kit": "1", "plan": plan})))
    assert typed_json.read(RunRecord, written, faults) == {"kit": "1", "plan": plan} and faults == []


def test_what_a_record_lacks_is_empty_and_what_it_has_more_is_passed_over(run: Path) -> None:
    change(run, "plan", {"layout": {"nodes": 7, "younger": [1]}, "younger": {}})
    change(run, "younger", 8)
    plan = recorded(run)
    assert (plan.layout.nodes, plan.layout.name, plan.container.image, plan.program.command, plan.header) == (7, "", None, (), ())
    run_dir.update(run, {"pid": 5})
    assert json.loads((run / "run.json").read_text())["younger"] == 8 and recorded(run) == plan


def test_the_records_of_the_corpus_are_believed() -> None:
    records = list((ROOT / "tests/corpus").glob("*/run.json"))
    assert len(records) > 80
    faults: list[str] = []
    for path in records:
        typed_json.read(RunRecord, json.loads(path.read_text()), faults)
    assert faults == []


def test_every_field_of_a_plan_has_a_name_of_its_own_by_which_kit_diff_shows_it() -> None:
    names = [name for part in get_type_hints(Plan).values() if is_dataclass(part) for name in typed_json._kinds(part)]
    assert len(names) == len(set(names)) > 30


@pytest.fixture
def run(tmp_path: Path) -> Path:
    record = json.loads((ROOT / "tests/corpus/scancel/run.json").read_text())
    (tmp_path / "run").mkdir()
    run_dir.save(tmp_path / "run", typed_json.read(RunRecord, record, []))
    return tmp_path / "run"


def change(run: Path, place: str, value: Any) -> None:
    record = json.loads((run / "run.json").read_text())
    *folders, key = place.split(".")
    inner = record
    for name in folders:
        inner = inner[name]
    inner[key] = value
    (run / "run.json").write_text(json.dumps(record))


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("plan", []),
        ("git", "abc"),
        ("code", {"live": "yes"}),
        ("plan.layout", []),
        ("plan.layout.nodes", "2"),
        ("plan.layout.nodes", True),
        ("plan.layout.nodes", 0),
        ("plan.layout.tasks_per_node", 10**7),
        ("plan.header", [["nodes"]]),
        ("plan.program.env", {"A": "b"}),
        ("plan.container.mounts", [["/a", "/b", True, ""]]),
        ("plan.container.mounts", [{"source": "/a", "target": "/b", "read_only": "ro", "where": ""}]),
        ("plan.container.mounts", [{"source": "/a", "target": "/b", "read_only": True}]),
        ("plan.layout.run_dir", "/a\0b"),
        ("plan.container.image", "\ud800"),
        ("plan.layout.array", "0-9:0"),
        ("plan.layout.array", "%4"),
        ("plan.policy.max_requeues", -1),
        ("job_id", 7),
        ("pid", -1),
        ("invocation", "kit submit"),
    ],
)
def test_a_value_of_another_kind_is_named_or_passed_over(place: str, value: Any, run: Path) -> None:
    before = run_dir.load(run)
    change(run, place, value)
    with pytest.raises(KitError) as raised:
        diff.between(run, run)
    name = "code.live" if place == "code" else place
    assert str(raised.value).startswith(
        f"kit: {run}/run.json: {name} has a value that kit does not write\n  fix: it was edited or damaged, or a newer kit wrote it: "
    )
    assert run_dir.load_sound(run).keys() >= before.keys() - {place}
    assert history.from_record(str(run), run_dir.load_sound(run)).folder == str(run)


def test_bytes_of_names_that_are_no_utf_8_are_text(run: Path) -> None:
    change(run, "plan.program.workdir", os.fsdecode(b"/a\xff"))
    assert recorded(run).program.workdir == os.fsdecode(b"/a\xff")


@pytest.mark.parametrize("text", ["[]", "7", '{"a": ' * 60 + "1" + "}" * 60, '{"a": ' * 100_000, "\0", '{"a": ' + "9" * 5000 + "}", "", "\xff"])
def test_what_is_no_object_of_json_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(text.encode("latin-1"))
    with pytest.raises((OSError, ValueError)):
        safe_read.mapping(tmp_path / "x.json")


def test_folders_leave_no_open_file(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="it is not a regular file"):
        safe_read.opened(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_host_list_has_as_many_names_as_slurm_allows() -> None:
    assert len(hostlist.expand("n[0-99999][0-99999],m[0-65535]")) == hostlist.MOST
    assert len(hostlist.expand(",".join(["n[0-99999]"] * 3000))) == hostlist.MOST
    assert hostlist.expand(brackets := "[0-9]" * 6) == [brackets]
    assert hostlist.expand("[" * 100_000) == []


def test_the_numbers_of_an_array_are_those_that_slurm_can_have() -> None:
    assert task_numbers.numbers("0-999999999") == task_numbers.numbers("0-9:0") == []
    assert task_numbers.is_sound("0-9:2%3") and task_numbers.is_sound("0-4000000:100")
    assert not any(task_numbers.is_sound(text) for text in ("", "%4", "9-0", "0-9:0", "0-4000001:9", "0-100000", "0-99999,0-9", "a"))


def test_a_pattern_that_no_name_can_match_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^kit: .kitignore:2: a pattern is longer than 1000 characters\n  fix: "):
        dockerignore.matcher(["*.log", "[" * 100_000], ".kitignore")


def test_a_hard_link_to_itself_in_an_archive_is_a_lack(tmp_path: Path) -> None:
    import tarfile

    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        for name, kind in (("manifest.json", tarfile.LNKTYPE), ("index.json", tarfile.SYMTYPE)):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, name
            archive.addfile(member)
    for name in ("manifest.json", "index.json"):
        with pytest.raises(KitError, match=f"lacks {name}, which its manifest names"):
            oci.Blobs(tmp_path / "x.tar").find(name)


def test_an_image_of_another_size_than_was_built_is_refused_without_reading_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    image = tmp_path / "x.sqsh"
    with image.open("wb") as file:
        file.truncate(1 << 40)  # sparse
    (tmp_path / "x.json").write_text(json.dumps({"file": "x.sqsh", "sha256": "0" * 64, "size": 7}))
    with pytest.raises(KitError, match=f"is not the file that was built: it has {1 << 40} bytes, not 7\n"):
        image_files.check(image)


@pytest.mark.parametrize("noted", ["10", "1003_2", "1003_", "1003", "--me", ""])
def test_a_task_is_followed_by_a_task_of_its_own_number(noted: str, tmp_path: Path) -> None:
    (tmp_path / "log/1002_1").mkdir(parents=True)
    note = tmp_path / "log/1002_1/continued-by"
    note.write_text(noted)
    assert job_chain.last_job(RunPaths(tmp_path), "1002_1") == "1002_1"
    note.write_text("1003_1\n")
    assert job_chain.last_job(RunPaths(tmp_path), "1002_1") == "1003_1"


# Where a file is opened that is no stranger's: kit's own scripts and causes, what this very process made, /proc.
OWN = {
    ("bad_nodes.py", 'with open(path, "a") as file:'),  # to write
    ("cause.py", 'text = Path(__file__).with_name("causes.yaml").read_text(encoding="utf-8")'),
    ("json_lines.py", "handle = os.open(file, flags, 0o600)"),
    ("script_copies.py", 'text = file.read_text(encoding="utf-8", errors="surrogateescape")'),
    ("secret_file.py", 'with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:'),
    ("secret_values.py", "for child in file.read_text().split():"),
    ("secret_values.py", 'while state.read_text().rpartition(")")[2].split()[0] not in "TZX":'),  # /proc
}
OPENS = re.compile(r"\bopen\(|\.read_text\(|\.read_bytes\(|\bjson\.load\(")


def test_whatever_is_read_back_is_opened_by_safe_read() -> None:
    """Which waits for nobody, and reads no device; the others are named here."""
    files = [
        *(path for path in KIT.glob("runs/*.py") if path.stem not in ("local", "local_disk", "local_processes", "shell")),
        *KIT.glob("diagnose/*/*.py"),
        *(KIT / f"{name}.py" for name in ("plan/bad_nodes", "images/inventory", "config/yaml_source", "files/json_lines")),
    ]
    found = {(path.name, line.strip()) for path in files for line in path.read_text().splitlines() if OPENS.search(line)}
    assert found == OWN
