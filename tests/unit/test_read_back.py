"""What is read back of a run is believed as far as it is what kit writes: by one table of kinds, and by one way to open files."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from kit import arrays, hostlist, images, regular, run_record, rundir
from kit.build import ignore
from kit.build.sources import oci
from kit.errors import KitError, UsageError
from kit.plan import Plan
from kit.runs import difference, history
from samples import ROOT

KIT = ROOT / "launch/kit"


def test_every_value_of_a_recorded_plan_has_a_kind() -> None:
    assert set(run_record.PLAN) == set(Plan._fields) - {"code", "why_live", "expect"}


def test_the_records_of_older_kits_are_believed() -> None:
    records = list((ROOT / "tests/corpus").glob("*/run.json"))
    assert len(records) > 80
    assert {name for path in records for name in run_record.faults(json.loads(path.read_text()))} == set()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    record = json.loads((ROOT / "tests/corpus/scancel/run.json").read_text())
    (tmp_path / "run").mkdir()
    rundir.save(tmp_path / "run", record)
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
        ("plan.nodes", "2"),
        ("plan.nodes", True),
        ("plan.nodes", 0),
        ("plan.tasks_per_node", 10**7),
        ("plan.header", [["nodes"]]),
        ("plan.env", {"A": "b"}),
        ("plan.mounts", [["/a", "/b", "ro", ""]]),
        ("plan.run_dir", "/a\0b"),
        ("plan.image", "\ud800"),
        ("plan.array", "0-9:0"),
        ("plan.array", "%4"),
        ("job_id", 7),
        ("invocation", "kit submit"),
    ],
)
def test_a_value_of_another_kind_is_named_or_passed_over(place: str, value: Any, run: Path) -> None:
    before = rundir.load(run)
    change(run, place, value)
    with pytest.raises(KitError) as raised:
        difference.between(run, run)
    name = "code.live" if place == "code" else place
    assert str(raised.value).startswith(f"kit: {run}/run.json: {name} has a value that kit does not write\n  fix: ")
    assert rundir.load_sound(run).keys() >= before.keys() - {place}
    assert history.from_record(str(run), rundir.load_sound(run)).folder == str(run)


def test_bytes_of_names_that_are_no_utf_8_are_text(run: Path) -> None:
    change(run, "plan.workdir", os.fsdecode(b"/a\xff"))
    assert rundir.load(run)["plan"]["workdir"] == os.fsdecode(b"/a\xff")


@pytest.mark.parametrize("text", ["[]", "7", '{"a": ' * 60 + "1" + "}" * 60, '{"a": ' * 100_000, "\0", '{"a": ' + "9" * 5000 + "}", "", "\xff"])
def test_what_is_no_object_of_json_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(text.encode("latin-1"))
    with pytest.raises((OSError, ValueError)):
        regular.mapping(tmp_path / "x.json")


def test_folders_leave_no_open_file(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="it is no regular file"):
        regular.opened(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_host_list_has_as_many_names_as_slurm_allows() -> None:
    assert len(hostlist.expand("n[0-99999][0-99999],m[0-65535]")) == hostlist.MOST
    assert len(hostlist.expand(",".join(["n[0-99999]"] * 3000))) == hostlist.MOST
    assert hostlist.expand(brackets := "[0-9]" * 6) == [brackets]
    assert hostlist.expand("[" * 100_000) == []


def test_the_numbers_of_an_array_are_those_that_slurm_can_have() -> None:
    assert arrays.numbers("0-999999999") == arrays.numbers("0-9:0") == []
    assert arrays.is_sound("0-9:2%3") and arrays.is_sound("0-4000000:100")
    assert not any(arrays.is_sound(text) for text in ("", "%4", "9-0", "0-9:0", "0-4000001:9", "0-100000", "0-99999,0-9", "a"))


def test_a_pattern_that_no_name_can_match_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^kit: .kitignore:2: a pattern is longer than 1000 characters\n  fix: "):
        ignore.matcher(["*.log", "[" * 100_000], ".kitignore")


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
        images.check(image)


@pytest.mark.parametrize("noted", ["10", "1003_2", "1003_", "1003", "--me", ""])
def test_a_task_is_followed_by_a_task_of_its_own_number(noted: str, tmp_path: Path) -> None:
    (tmp_path / "log/1002_1").mkdir(parents=True)
    note = tmp_path / "log/1002_1/continued-by"
    note.write_text(noted)
    assert history.last_job(str(tmp_path), "1002_1") == "1002_1"
    note.write_text("1003_1\n")
    assert history.last_job(str(tmp_path), "1002_1") == "1003_1"


# Where a file is opened that is no stranger's: kit's own scripts, what this very process made, /proc.
OWN = {
    ("hang.py", 'script = (assets.folder("launch/scripts") / "stacks.sh").read_text(encoding="utf-8")'),
    ("history.py", "handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)"),
    ("rerun.py", 'text = file.read_text(encoding="utf-8", errors="surrogateescape")'),
    ("secret_values.py", 'with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:'),
    ("secret_values.py", "for child in file.read_text().split():"),
    ("submit.py", 'if script in process.read_bytes().split(b"\\0"):'),
}
OPENS = re.compile(r"\bopen\(|\.read_text\(|\.read_bytes\(|\bjson\.load\(")


def test_whatever_is_read_back_is_opened_by_regular() -> None:
    """Which waits for nobody, and reads no device; the others are named here."""
    files = [*KIT.glob("runs/*.py"), *KIT.glob("why/*.py"), *(KIT / f"{name}.py" for name in ("rundir", "nodes", "shelf", "given", "secret_values"))]
    found = {(path.name, line.strip()) for path in files for line in path.read_text().splitlines() if OPENS.search(line)}
    assert found == OWN
