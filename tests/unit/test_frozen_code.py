"""What a snapshot of the code holds, and which words of a command are taken from it. Real git, real folders."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from kit.base.errors import KitError, Problems, UsageError
from kit.plan import snapshot, source_files

from samples import HOSTILE_NAME

GIT = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
IDENTITY = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "protocol.file.allow=always")


pytestmark = pytest.mark.tame


@pytest.fixture(autouse=True)
def own_git_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in GIT.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", *IDENTITY, *arguments], cwd=folder, check=True, capture_output=True)


def write(folder: Path, **files: str) -> None:
    """write(folder, a__b_py="text") makes a/b.py."""
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def found(folder: Path) -> source_files.Sources:
    problems = Problems()
    result = source_files.find(str(folder), "code", problems, ())
    problems.raise_if_any()
    return result


def names(folder: Path) -> list[str]:
    return sorted(found(folder).names)


def test_git_says_what_is_code(project: Path) -> None:
    git(project, "init")
    write(
        project, train_py="1", gone_py="1", pkg__a_py="1", _gitignore="*.log\n*.npy\n/data/\n*.so\n.venv/\n", x_log="1", x_npy="1", data__big="1", pkg__c_so="1"
    )
    git(project, "add", "train.py", "gone.py", "pkg/a.py")
    git(project, "commit", "-m", "x")
    (project / "gone.py").unlink()
    write(project, new_py="1", runs__one__run_json="{}", images__a_json="{}", other__pyvenv_cfg="", other__lib_py="1", pkg__cached_py="1")
    (project / ".venv").mkdir()
    (project / ".venv/pyvenv.cfg").touch()
    (project / "out").mkdir()  # a run directory at a place of the user's own
    for file in ("env.sh", "run_script.sh", "run.json"):
        (project / "out" / file).touch()
    assert names(project) == [".gitignore", "new.py", "pkg/a.py", "pkg/cached.py", "train.py"]
    # What git ignores may still be looked for beside the code: data, modules built in place; not logs.
    assert sorted(set(found(project).to_link()[0])) == ["data", "images", "pkg/c.so", "x.npy"]
    # A part of a checkout is a project of its own.
    assert names(project / "pkg") == ["a.py", "cached.py"]


def test_submodules_and_repositories_inside_are_code_too(project: Path, tmp_path: Path) -> None:
    library = tmp_path / "library"
    library.mkdir()
    git(library, "init")
    write(library, lib_py="1")
    git(library, "add", ".")
    git(library, "commit", "-m", "x")
    git(project, "init")
    git(project, "submodule", "add", str(library), "third/party")
    git(project, "clone", str(library), "nested")
    write(project, train_py="1")
    (project / "third/party/lib.py").write_text("changed")
    assert names(project) == [".gitmodules", "nested/lib.py", "third/party/lib.py", "train.py"]


def test_what_was_built_in_a_submodule_is_linked_as_in_the_project_itself(kit, project: Path, tmp_path: Path) -> None:
    library = tmp_path / "library"
    library.mkdir()
    git(library, "init")
    write(library, fused__lib_py="1", _gitignore="*.so\n/build/\n")
    git(library, "add", ".")
    git(library, "commit", "-m", "x")
    git(project, "init")
    git(project, "submodule", "add", str(library), "third/party")
    git(project, "clone", str(library), "nested")
    write(project, train_py="1", third__party__fused__fast_so="built", third__party__build__a_o="1", nested__fused__fast_so="built")
    kit("render", "train.py", "--output", "out", cwd=project)
    code = project / "out/code"
    for folder in ("third/party", "nested"):
        assert (code / folder / "fused/fast.so").read_text() == "built" and not (code / folder / "fused").is_symlink()
    assert (code / "third/party/build/a.o").is_file()


def test_what_git_tracks_in_a_folder_called_runs_is_code(kit, project: Path) -> None:
    """Some projects keep their recipes there; TensorBoard, YOLO and kit write their results there."""
    git(project, "init")
    write(project, train_py="from runs.recipe import LR", runs__recipe_py="LR = 1", runs__go_sh="python train.py")
    git(project, "add", ".")
    write(project, runs__events_txt="1", runs__one__run_json="{}")
    assert names(project) == ["runs/go.sh", "runs/recipe.py", "train.py"]
    kit("render", "--output", "out", "bash", "runs/go.sh", cwd=project)
    assert '"${KIT_RUN_DIR}"/code/runs/go.sh' in (project / "out/env.sh").read_text()


def test_what_git_tracks_in_a_folder_called_images_is_code_where_a_program_is(kit, project: Path) -> None:
    """kit build writes there; and so are packages called that read images."""
    git(project, "init")
    write(project, train_py="from images import loader", images__labels_json="{}", images__samples__a_png="1")
    git(project, "add", ".")
    write(project, images__first_sqsh="1", images__first_json="{}")
    assert (names(project), found(project).left_out) == (["train.py"], ("images",))
    write(project, images__loader_py="1")
    git(project, "add", "images/loader.py")
    write(project, images__box__etc__rc_py="1", images__box__bin__sh="1", images__new_py="1")
    assert names(project) == ["images/labels.json", "images/loader.py", "images/samples/a.png", "train.py"]
    assert sorted(found(project).left_out) == ["images/box", "images/first.json", "images/first.sqsh", "images/new.py"]
    kit("render", "train.py", "--output", "out", cwd=project)
    code = project / "out/code/images"
    assert sorted(path.name for path in code.iterdir() if path.is_symlink()) == ["box", "first.json", "first.sqsh", "new.py"]
    assert not (code / "loader.py").is_symlink() and (code / "loader.py").read_text() == "1"
    done = kit("render", "images/new.py", "--output", "other", cwd=project)
    assert "\n  code:          live: images/new.py is in images/, of which kit copies only code that git tracks\n" in done.stdout
    (project / ".kitignore").write_text("images\n")
    kit("render", "train.py", "--output", "ignored", cwd=project)
    assert (project / "ignored/code/images").is_symlink()


def test_a_folder_called_images_holds_large_files_beside_a_program(kit, project: Path) -> None:
    git(project, "init")
    write(project, train_py="1", images__figures_py="1", images__a_png="1", images__video__b_mp4="", images__video__c_txt="1")
    os.truncate(project / "images/video/b.mp4", source_files.LARGE + 1)
    git(project, "add", ".")
    assert names(project) == ["images/a.png", "images/figures.py", "images/video/c.txt", "train.py"]
    assert found(project).left_out == ("images/video/b.mp4",)
    kit("render", "images/figures.py", "--output", "out", cwd=project)
    assert not (project / "out/code/images/figures.py").is_symlink() and (project / "out/code/images/video/b.mp4").is_symlink()


@pytest.mark.parametrize("limit, value", [("MOST_FILES", 2), ("MOST_BYTES", 2)])
def test_a_folder_called_images_is_linked_where_it_is_too_much_for_a_snapshot(limit: str, value: int, project: Path, monkeypatch) -> None:
    git(project, "init")
    write(project, train_py="1", images__figures_py="1", images__a_png="1", images__new_png="1")
    git(project, "add", "train.py", "images/figures.py", "images/a.png")
    monkeypatch.setattr(source_files, limit, value)
    sources = found(project)
    assert sources.names == ("train.py",)
    snapshot.copy(snapshot.Snapshot(sources, str(project), (), False, ()), project / "copy", {})
    assert os.readlink(project / "copy/images") == f"{project}/images"


def test_runs_are_not_linked_beside_code_that_was_brought_to_a_folder_called_runs(project: Path) -> None:
    """The folder on the login node also has every run of the project."""
    write(project, train_py="1", runs__recipe_py="1", runs__one__run_json="{}", runs__two__run_json="{}", data__a_bin="1")
    listed = {name: {"tracked": True} for name in ("train.py", "runs/recipe.py")}
    (project / ".kit-brought.json").write_text(json.dumps({"place": str(project), "files": listed}))
    assert names(project) == ["runs/recipe.py", "train.py"]
    assert found(project).to_link() == (["data"], [])


def test_without_git_all_but_environments_caches_runs_and_hidden_folders(project: Path) -> None:
    write(project, train_py="1", pkg__a_py="1", venv__pyvenv_cfg="1", venv__lib__b_py="1", runs__r__env_sh="1", images__x_json="1", run__env_sh="1")
    (project / "run/run_script.sh").touch()
    for folder in (".cache", "pkg/__pycache__"):
        (project / folder).mkdir()
        (project / folder / "x.py").touch()
    (project / "weights.pt").write_bytes(b"")
    os.truncate(project / "weights.pt", source_files.LARGE + 1)
    result = found(project)
    assert sorted(result.names) == ["pkg/a.py", "train.py"]
    assert sorted(result.left_out) == ["images", "weights.pt"]
    assert result.notes == ("not in the snapshot of the code, but linked there, and live: weights.pt (10 MiB)",)


def test_kitignore_takes_more_out(project: Path) -> None:
    write(project, train_py="1", data__a__b_json="1", data__c_json="1", notes_txt="1")
    (project / ".kitignore").write_text("# not code\ndata\n*.txt\n")
    for by_git in (False, True):
        if by_git:
            git(project, "init")
        assert names(project) == [".kitignore", "train.py"]
        assert sorted(set(found(project).to_link()[0])) == ["data", "notes.txt"]
    (project / ".kitignore").write_text("data\n!data/c.json\n")
    assert names(project) == [".kitignore", "data/c.json", "notes.txt", "train.py"]


def test_a_large_file_that_git_would_take_is_refused_by_name(project: Path) -> None:
    git(project, "init")
    write(project, train_py="1")
    for name in ("a.pt", "b.pt", "c.pt", "d.pt"):
        (project / name).touch()
        os.truncate(project / name, source_files.LARGE + 1)
    with pytest.raises(UsageError) as raised:
        found(project)
    assert str(raised.value) == (
        "kit: code: too large for a snapshot of the code: a.pt (10 MiB), b.pt (10 MiB), c.pt (10 MiB) and 1 more\n"
        "  fix: ignore what is not code in .gitignore, if git does not track it, or in .kitignore, "
        "which is written as .dockerignore is; or run live code: `code: live`"
    )


def test_folders_in_any_number_have_links(kit, project: Path) -> None:
    git(project, "init")
    write(project, train_py="1", _gitignore="/data/\n/exp-*/\n", data__a_bin="1")
    git(project, "add", "train.py")
    for number in range(source_files.MOST_LINKS + 1):
        write(project / f"exp-{number}", a_bin="1")
    done = kit("render", "train.py", "--output", "out", cwd=project)
    assert (project / "out/code/data/a.bin").is_file() and (project / "out/code/exp-7/a.bin").is_file() and done.stderr == ""


def test_lines_that_are_no_utf_8_are_taken_as_they_are(kit, project: Path) -> None:
    write(project, train_py="1")
    kit("render", "train.py", "--setup", b"echo \xe9 >x".decode(errors="surrogateescape"), "--output", "out", cwd=project)
    assert b"echo \xe9 >x" in (project / "out/setup.sh").read_bytes()


def test_old_results_in_great_number_get_no_links(kit, project: Path) -> None:
    """Each run would have them all."""
    git(project, "init")
    write(project, train_py="1", _gitignore="*.out\n*.npy\n*.so\nevents-*\n", logs__readme_txt="1", logs__a_so="1", a_npy="1")
    git(project, "add", "train.py", "logs/readme.txt")
    for number in range(source_files.MOST_LINKS + 1):
        (project / f"logs/{number}.npy").touch()
        (project / f"logs/events-{number}").touch()
        (project / f"slurm-{number}.out").touch()
    done = kit("render", "train.py", "--output", "out", cwd=project)
    assert sorted(path.name for path in (project / "out/code").rglob("*") if path.is_symlink()) == ["a.npy", "a.so"]
    live = "a program finds them in the working directory"
    said = [f"kit: no links in the snapshot of the code to 201 ignored files: logs/*{which}; {live}" for which in (" without an ending", ".npy")]
    assert sorted(done.stderr.splitlines()) == said
    (project / "logs/0.npy").unlink()
    kit("render", "train.py", "--output", "two", cwd=project)
    assert (project / "two/code/logs/1.npy").is_symlink()


@pytest.mark.parametrize(("limit", "value", "problem"), [("MOST_FILES", 2, "holds more than 2 files"), ("MOST_BYTES", 2, "together: 3 bytes")])
def test_too_much_is_refused(limit: str, value: int, problem: str, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(project, a_py="1", b_py="1", c_py="1")
    monkeypatch.setattr(source_files, limit, value)
    with pytest.raises(UsageError, match=problem):
        found(project)


def test_of_too_many_files_kit_looks_at_no_more_than_show_it(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A data set of a million files that nobody has told git to ignore: each look asks the file server."""
    git(project, "init")
    for number in range(9):
        write(project, **{f"data__{number}_py": "1"})
    monkeypatch.setattr(source_files, "MOST_FILES", 2)
    seen: list[str] = []
    monkeypatch.setattr(source_files.os, "lstat", lambda path, lstat=os.lstat, **more: (seen.append(str(path)), lstat(path, **more))[1])
    with pytest.raises(UsageError, match="holds more than 2 files"):
        found(project)
    assert len([path for path in seen if path.endswith(".py")]) == 3


def test_copies_are_copies_with_odd_names_links_and_modes(kit, project: Path) -> None:
    git(project, "init")
    odd = [f"{HOSTILE_NAME}.py", "new\nline.py", os.fsdecode(b"not-utf8-\xff.py")]
    for name in [*odd, "train.py", "pkg/a.py"]:
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).write_text(f"text of {name!r}")
    (project / "train.py").chmod(0o754)
    (project / "inside").symlink_to("pkg/a.py")
    (project / "pkg/up").symlink_to("../train.py")
    (project / "outside").symlink_to("../elsewhere")
    (project / "folder").symlink_to("pkg")
    (project / "..now").write_text("as Kubernetes names folders")
    (project / "now").symlink_to("..now")
    (project / ".gitignore").write_text("data/\n")
    (project / "data").mkdir()
    (project / "data/numbers").write_text("1")
    kit("render", "train.py", "--output", "out", cwd=project)
    code = project / "out/code"
    for name in [*odd, "pkg/a.py"]:
        assert (code / name).read_text() == f"text of {name!r}" and not (code / name).samefile(project / name)
    assert (code / "train.py").stat().st_mode & 0o777 == 0o700 and (code / "pkg/a.py").stat().st_mode & 0o777 == 0o600
    links = {name: os.readlink(code / name) for name in ("inside", "pkg/up", "outside", "folder", "now", "data")}
    outside, data = f"{project}/../elsewhere", f"{project}/data"
    assert links == {"inside": "pkg/a.py", "pkg/up": "../train.py", "outside": outside, "folder": "pkg", "now": "..now", "data": data}
    facts = json.loads((project / "out/run.json").read_text())["code"]
    assert (facts["live"], facts["folder"], facts["used"], facts["linked"]) == (False, "code", ["train.py"], 1)
    assert facts["files"] == sum(1 for path in code.rglob("*") if (path.is_symlink() or path.is_file())) - 1  # the link to data


def link_instead(project: Path, name: str, target: Path, link: str) -> None:
    """Move a folder of the project away, and put a link there."""
    target.parent.mkdir(parents=True, exist_ok=True)
    (project / name).rename(target)
    (project / name).symlink_to(link)


@pytest.mark.parametrize(
    ("name", "target", "link", "ignored"),
    [
        ("data", "disk/data", "BASE/disk/data", ""),
        ("data", "disk/data", "../disk/data", ""),
        ("data", "project/elsewhere", "elsewhere", ""),
        ("data/deep", "disk/deep", "../../disk/deep", ""),
        ("data", "disk/data", "BASE/disk/data", "data\n"),
        ("data", "disk/data", "BASE/disk/data", "data/\n"),
    ],
)
def test_a_tracked_folder_that_became_a_link_keeps_its_files(name: str, target: str, link: str, ignored: str, kit, project: Path) -> None:
    git(project, "init")
    write(project, train_py="1", data__list_txt="of data", data__deep__file_txt="of deep")
    git(project, "add", ".")
    git(project, "commit", "-m", "x")
    (project / ".gitignore").write_text(ignored)
    base = project.parent
    link_instead(project, name, base / target, link.replace("BASE", str(base)))
    (base / target).chmod(0o755)
    files = sorted(path for path in (base / target).rglob("*") if path.is_file())
    before = [(path.stat(), path.read_text()) for path in files]
    kit("render", "train.py", "--output", "out", cwd=project)
    assert [(path.stat().st_mtime_ns, path.stat().st_mode, path.read_text()) for path in files] == [
        (facts.st_mtime_ns, facts.st_mode, text) for facts, text in before
    ]
    code = project / "out/code"
    assert (code / name).is_symlink() and (code / "data/list.txt").read_text() == "of data" and (code / "data/deep/file.txt").read_text() == "of deep"


@pytest.mark.parametrize("is_tracked", [True, False])
def test_a_program_in_a_linked_folder_is_live_and_kit_says_why(is_tracked: bool, kit, project: Path) -> None:
    git(project, "init")
    write(project, src__train_py="1")
    if is_tracked:
        git(project, "add", ".")
    link_instead(project, "src", project.parent / "disk/src", "../disk/src")
    done = kit("render", "src/train.py", "--output", "out", cwd=project)
    assert "live: src/train.py is in a linked folder, and kit copies only the link" in done.stdout


def test_links_to_code_elsewhere_are_named_as_live(kit, project: Path, tmp_path: Path) -> None:
    write(tmp_path / "common", util_py="1", pkg__x_py="1", data__x_txt="1")
    write(project, src__a_py="1", train_py="1")
    (tmp_path / "common/pkg/__init__.py").touch()
    for name, target in {"util.py": "../common/util.py", "pkg": "../common/pkg", "data": "../common/data", "a.py": "src/a.py"}.items():
        (project / name).symlink_to(target)
    done = kit("render", "train.py", "--output", "out", cwd=project)
    assert done.stderr == "kit: links to code that is not in the snapshot stay links, and that code is live: pkg, util.py\n"


def test_whole_paths_of_links_to_the_projects_own_code_lead_to_the_copy(kit, project: Path) -> None:
    git(project, "init")
    write(project, v2__train_py="1", v2__pkg__x_py="1", conf__a_yaml="1", local__b_yaml="1", data__c_txt="1", _gitignore="local/\n")
    (project / "v2/pkg/__init__.py").touch()
    links = {"train.py": "v2/train.py", "conf/main.yaml": "conf/a.yaml", "pkg": "v2/pkg", "local.yaml": "local/b.yaml", "samples": "data"}
    for name, target in links.items():
        (project / name).symlink_to(project / target)
    (project / "other.yaml").symlink_to("local/b.yaml")
    done = kit("render", "train.py", "--output", "out", cwd=project)
    found = {name: os.readlink(project / "out/code" / name) for name in links}
    live = {"local.yaml": f"{project}/local/b.yaml", "samples": f"{project}/data"}
    assert found == {"train.py": "v2/train.py", "conf/main.yaml": "a.yaml", "pkg": "v2/pkg", **live}
    assert done.stderr == "kit: links to code that is not in the snapshot stay links, and that code is live: local.yaml, other.yaml\n"


def test_many_links_by_whole_paths_are_not_each_searched_in_the_list_of_all_files(project: Path, tmp_path: Path) -> None:
    compared = []

    class Name(str):
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            compared.append(other)
            return str.__eq__(self, other)

    write(project, train_py="1")
    for number in range(100):
        (project / f"{number}.py").symlink_to(project / "train.py")
    sources = found(project)._replace(names=tuple(map(Name, names(project))))
    record = snapshot.copy(snapshot.Snapshot(sources, str(project), (), False, ()), tmp_path / "code", {})
    assert (record["files"], os.readlink(tmp_path / "code/7.py")) == (101, "train.py")
    assert len(compared) < 300


@pytest.mark.parametrize("has_git", [True, False])
def test_no_list_of_files_has_a_link_written_through(has_git: bool, kit, project: Path) -> None:
    """The index of somebody else's checkout, or the list that comes from another machine, may name what is behind a link."""
    home = project.parent / "home"
    write(home, _bashrc="mine", new__x="mine")
    write(project, train_py="1")
    (project / "h").symlink_to(home)
    files = ["h/.bashrc", "h/./.bashrc", "./h//.bashrc", "h/new/x", "h/never"]
    if has_git:
        git(project, "init")
        blob = subprocess.run(["git", "hash-object", "-w", "train.py"], cwd=project, check=True, capture_output=True, text=True).stdout.strip()
        for name in ("h/.bashrc", "h/new/x", "h/never"):
            git(project, "update-index", "--add", "--cacheinfo", f"100644,{blob},{name}")
    else:
        listed = {name: {"tracked": True} for name in ("train.py", "./train.py", "h", *files)}
        (project / ".kit-brought.json").write_text(json.dumps({"place": str(project), "files": listed}))
    kit("render", "train.py", "--output", "out", cwd=project)
    assert (home / ".bashrc").read_text() == (home / "new/x").read_text() == "mine" and sorted(os.listdir(home)) == [".bashrc", "new"]
    assert (project / "out/code/h").is_symlink() and (project / "out/code/train.py").read_text() == "1"


def test_a_folder_that_becomes_a_link_before_it_is_copied_keeps_its_files(project: Path) -> None:
    write(project, data__list_txt="1")
    write(project.parent, disk__list_txt="of the disk")
    (project / "link").symlink_to(project.parent / "disk")
    sources = found(project)._replace(names=("link", "link/list.txt", "link/new", "data/list.txt", "data/list.txt"))
    snapshot.copy(snapshot.Snapshot(sources, str(project), (), False, ()), project.parent / "code", {})
    assert os.listdir(project.parent / "disk") == ["list.txt"] and (project.parent / "disk/list.txt").read_text() == "of the disk"
    assert (project.parent / "code/data/list.txt").read_text() == "1"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["train.py", "conf/a.yaml"], ["CODE/train.py", "CODE/conf/a.yaml"]),
        (
            ["PROJECT/train.py", "--config=conf/a.yaml", "--config", "PROJECT/conf/a.yaml"],
            ["CODE/train.py", "--config=CODE/conf/a.yaml", "--config", "CODE/conf/a.yaml"],
        ),
        (["./train.py", "../project/conf/a.yaml", "notes.txt", "a.yaml"], ["CODE/train.py", "CODE/conf/a.yaml", "notes.txt", "a.yaml"]),
        (["python", "-u", "train.py", "--lr", "1e-3"], ["python", "-u", "CODE/train.py", "--lr", "1e-3"]),
        (["bash", "run.sh"], ["bash", "CODE/run.sh"]),
        (["./tool", "tool"], ["CODE/tool", "tool"]),
        # What an option like these names is written, and would not be found where it is looked for.
        (["train.py", "--output", "results.json", "--save-to=results.json"], ["CODE/train.py", "--output", "results.json", "--save-to=results.json"]),
        (["train.py", "--out.file=results.json", "--ckpt", "results.json"], ["CODE/train.py", "--out.file=results.json", "--ckpt", "results.json"]),
        (
            ["train.py", "--log-config", "results.json", "--catalog=conf/a.yaml"],
            ["CODE/train.py", "--log-config", "CODE/results.json", "--catalog=CODE/conf/a.yaml"],
        ),
        (["train.py", "-o", "conf/a.yaml", "--history=conf/a.yaml"], ["CODE/train.py", "-o", "conf/a.yaml", "--history=conf/a.yaml"]),
        # A .json may be either: the option has to say that it is read.
        (["train.py", "-o", "results.json", "--summary-file=results.json"], ["CODE/train.py", "-o", "results.json", "--summary-file=results.json"]),
        (["train.py", "--predictions", "results.json", "--json=results.json"], ["CODE/train.py", "--predictions", "results.json", "--json=results.json"]),
        (["train.py", "--data", "results.json"], ["CODE/train.py", "--data", "results.json"]),
        (["train.py", "-c", "results.json", "--deepspeed=results.json"], ["CODE/train.py", "-c", "CODE/results.json", "--deepspeed=CODE/results.json"]),
        (["train.py", "results.json", "--hparams", "results.json"], ["CODE/train.py", "CODE/results.json", "--hparams", "CODE/results.json"]),
        (["python", "-m", "pkg.sub", "conf/a.yaml"], ["python", "RUN/module.py", "pkg.sub", "CODE/conf/a.yaml"]),
        (["python3.11", "-m", "pkg.sub"], ["python3.11", "RUN/module.py", "pkg.sub"]),
        (["PROJECT/.venv/bin/python", "-m", "pkg.sub"], ["PROJECT/.venv/bin/python", "RUN/module.py", "pkg.sub"]),
        (["python", "-W", "ignore", "-Xdev", "-m", "pkg.sub"], ["python", "-W", "ignore", "-Xdev", "RUN/module.py", "pkg.sub"]),
        (["python", "-m", "timeit", "conf/a.yaml"], ["python", "-m", "timeit", "CODE/conf/a.yaml"]),
        # Nothing below the working directory.
        (["/usr/bin/env", "x"], None),
        (["bash", "-c", "python train.py"], None),
        (["python", "-m", "timeit"], None),
        (["python3.11", "-mtimeit", "out/not_there_yet.py"], None),
        (["python", "-m"], None),
        (["python", "-", "-m", "pkg.sub"], None),
        (["python"], None),
    ],
)
def test_what_the_command_names_is_taken_from_the_snapshot(command: list[str], words: list[str], kit, project: Path) -> None:
    write(project, train_py="1", conf__a_yaml="1", run_sh="1", notes_txt="1", results_json="1", pkg__sub_py="1")
    (project / "tool").touch(mode=0o755)
    (project / ".venv/bin").mkdir(parents=True)
    (project / ".venv/pyvenv.cfg").touch()
    (project / ".venv/bin/python").symlink_to(sys.executable)
    (project / "job.yaml").write_text(json.dumps({"command": [word.replace("PROJECT", str(project)) for word in command]}))
    done = kit("render", "job.yaml", "--output", "out", cwd=project)
    facts = json.loads((project / "out/run.json").read_text())
    if words is None:
        assert facts["plan"]["program"]["command"] == command
        assert facts["code"] == {"live": True, "why": "the command names no file of the working directory"}
        assert "\n  code:          live: the command names no file of the working directory\n" in done.stdout
        assert not (project / "out/code").exists() and "\nKIT_CODE=\n" in (project / "out/env.sh").read_text()
        return
    assert facts["plan"]["program"]["command"] == [
        word.replace("CODE", f"{project}/out/code").replace("RUN", f"{project}/out").replace("PROJECT", str(project)) for word in words
    ]
    assert str(project / "out") not in (project / "out/env.sh").read_text(), "the run directory may be moved"
    assert (project / "out/module.py").exists() == ("RUN/module.py" in words)


def test_a_json_file_that_an_option_may_write_is_frozen_only_if_git_tracks_it(kit, project: Path) -> None:
    git(project, "init")
    write(project, train_py="1", new_json="1", model_json="1", history_json="1")
    git(project, "add", "model.json", "history.json")
    words = "--model model.json --history history.json --model=new.json"
    frozen = '--model "${KIT_CODE}"/model.json --history history.json --model=new.json'
    kit("render", "train.py", "--output", "one", "--", *words.split(), cwd=project)
    command = json.loads((project / "one/run.json").read_text())["plan"]["program"]["command"]
    assert " ".join(command[1:]) == frozen.replace('"${KIT_CODE}"', f"{project}/one/code")
    (project / "job.yaml").write_text(json.dumps({"script": f"OUT=new.json\npython train.py {words}\n"}))
    kit("render", "job.yaml", "--output", "two", cwd=project)
    assert (project / "two/script.sh").read_text() == f'OUT=new.json\npython "${{KIT_CODE}}"/train.py {frozen}\n'
    (project / "job.yaml").write_text("command: env --json new.json\n")
    done = kit("render", "job.yaml", "--output", "three", cwd=project)
    assert "\n  code:          live: new.json may be what the command writes\n" in done.stdout


def test_a_path_of_a_script_may_have_an_equals_sign(kit, project: Path) -> None:
    """Hydra and others call folders so."""
    write(project, **{"exp__lr=0__train_py": "1", "conf__a_yaml": "1"})
    lines = "CONF=conf/a.yaml python exp/lr=0/train.py model.conf=conf/a.yaml --conf=conf/a.yaml\n"
    (project / "job.yaml").write_text(json.dumps({"script": lines}))
    done = kit("render", "job.yaml", "--output", "out", cwd=project)
    frozen = lines.replace("exp/", '"${KIT_CODE}"/exp/').replace("conf/a", '"${KIT_CODE}"/conf/a')
    assert ((project / "out/script.sh").read_text(), done.stderr) == (frozen, "")


def test_the_results_of_a_second_run_replace_those_of_the_first(kit, project: Path) -> None:
    write(project, train_py="import sys\nwith open(sys.argv[2], 'a') as file:\n    file.write('x')\n")
    for count in (1, 2):
        kit("run", "train.py", "--runtime", "none", "--code", "snapshot", "--", "-o", "results.json", cwd=project)
        assert (project / "results.json").read_text() == "x" * count


def test_a_shell_script_that_starts_live_code_is_noticed(kit, project: Path) -> None:
    write(project, train_py="1", run_sh="python -u ./train.py\n")
    (project / "job.yaml").write_text("command: bash run.sh\n")
    done = kit("submit", "job.yaml", "--dry-run", cwd=project)
    assert done.stderr == 'kit: run.sh is a snapshot, but the ./train.py that it names is live: write "${KIT_CODE:-.}"/train.py there\n'
    (project / "run.sh").write_text('python -u "${KIT_CODE:-.}"/train.py\n')
    assert kit("submit", "job.yaml", "--dry-run", cwd=project).stderr == ""


MONOREPO = {"train_py": "print('root')", "conf_yaml": "1", "sub__train_py": "print('sub')", "sub__conf_yaml": "1", "sub__only_yaml": "1"}


@pytest.mark.parametrize(
    "line",
    [
        "cd sub && python train.py --config conf.yaml",
        "(cd sub; python train.py --config conf.yaml)",
        "true;pushd sub; python train.py",
        "bash -c 'cd sub; python train.py --config conf.yaml --x'",
        "env --chdir=sub python train.py",
        "env -C sub python train.py",
        'cd sub && python train.py --config only.yaml "$@"',
        "run() { python train.py; }; cd sub; run",
        "for each in 1 2; do python train.py; cd sub; done",
        "CONF=conf.yaml; (cd sub; python -m train $CONF)",
        "X=$(cd sub; python train.py)",
        'command cd sub; python train.py "$@"',
        'CMD="cd sub && python train.py $*"; bash -c "$CMD"',
        "bash -s <<< '' <<EOF\ncd sub\npython train.py $1\nEOF",
    ],
)
def test_a_script_that_changes_its_folder_is_left_as_it_is(line: str, kit, project: Path) -> None:
    write(project, **MONOREPO)
    (project / "job.yaml").write_text(json.dumps({"script": line}))
    done = kit("render", "job.yaml", "--output", "out", "--", "--other", "only.yaml", "--config", "conf.yaml", cwd=project)
    assert (project / "out/script.sh").read_text() == f"{line}\n"
    assert " script --other only.yaml --config conf.yaml)\n" in (project / "out/env.sh").read_text()
    assert done.stderr == ""
    why = "the script changes its folder, and kit freezes no relative name in it; for a folder of the project, write `workdir: DIR` in place of `cd DIR`"
    assert f"\n  code:          live: {why}\n" in done.stdout


@pytest.mark.parametrize(
    "line",
    [
        'HERE=$(cd "$(dirname "$0")" && pwd)',
        "(cd sub && make all)",
        'echo "starting cd"',
        "log 'cd sub'",
        'cd "${KIT_CODE:-.}"',
        'cd "$KIT_CODE"',
        'HERE=$(cd .. && pwd); taskset -c "$CPUS" true',
        " && ".join(["true"] * 400),
    ],
)
def test_a_script_whose_programs_stay_in_its_folder_is_frozen(line: str, kit, project: Path) -> None:
    write(project, **MONOREPO)
    (project / "job.yaml").write_text(json.dumps({"script": f"{line}\npython train.py --config conf.yaml\n"}))
    done = kit("render", "job.yaml", "--output", "out", "--", "conf.yaml", cwd=project)
    assert (project / "out/script.sh").read_text() == f'{line}\npython "${{KIT_CODE}}"/train.py --config "${{KIT_CODE}}"/conf.yaml\n'
    assert ' script "${KIT_RUN_DIR}"/code/conf.yaml)\n' in (project / "out/env.sh").read_text()
    assert done.stderr == ""


def test_the_code_that_a_script_names_is_frozen_though_kit_finds_no_other_name_in_it(kit, project: Path) -> None:
    write(project, **MONOREPO)
    (project / "job.yaml").write_text(json.dumps({"script": 'cd "$KIT_CODE/sub"\npython train.py\n'}))
    done = kit("run", "job.yaml", "--runtime", "none", "--code", "snapshot", "--output", "out", cwd=project)
    assert "[node0] sub\n" in done.stdout + done.stderr and "which is live" not in done.stderr
    assert (project / "out/code/sub/train.py").is_file()


def test_by_whole_paths_a_script_that_changes_its_folder_is_frozen_and_the_rest_is_named(kit, project: Path) -> None:
    write(project, **MONOREPO)
    script = f"# cd\npython train.py --cd=conf.yaml\ncd sub; python {project}/sub/train.py --config only.yaml\n"
    (project / "job.yaml").write_text(json.dumps({"script": script}))
    done = kit("render", "job.yaml", "--output", "out", "--", "conf.yaml", f"{project}/conf.yaml", cwd=project)
    assert (project / "out/script.sh").read_text() == script.replace(f"{project}/", '"${KIT_CODE}"/')
    assert ' script conf.yaml "${KIT_RUN_DIR}"/code/conf.yaml)\n' in (project / "out/env.sh").read_text()
    assert done.stderr == (
        "kit: line 2 of the script names train.py, which is live, since the script changes its folder: "
        'the snapshot\'s is "${KIT_CODE}"/ and its path from the working directory\n'
    )


def test_the_program_of_the_folder_that_a_script_enters_runs(kit, project: Path) -> None:
    write(project, **MONOREPO)
    (project / "job.yaml").write_text("script: cd sub && python train.py\n")
    done = kit("run", "job.yaml", "--runtime", "none", "--code", "snapshot", cwd=project)
    assert "[node0] sub\n" in done.stdout + done.stderr


def test_a_run_here_says_why_it_has_no_copy_of_the_code_where_it_was_to_have_one(kit, project: Path) -> None:
    (project / "job.yaml").write_text("script: cd / && true\ncode: snapshot\n")
    said = "kit: the code is live: the script changes its folder, and kit freezes no relative name in it; "
    assert kit("run", "job.yaml", "--runtime", "none", cwd=project).stderr.startswith(said)
    assert kit("run", "job.yaml", "--runtime", "none", "--code", "live", cwd=project).stderr == ""
    assert said in kit("shell", "job.yaml", "--local", "--runtime", "none", cwd=project, input="exit 0").stderr


def test_live_code_is_left_alone(kit, project: Path) -> None:
    write(project, train_py="1")
    (project / "job.yaml").write_text("command: train.py\ncode: live\n")
    kit("render", "job.yaml", "--output", "out", cwd=project)
    assert "\nKIT_CODE=\nKIT_COMMAND=(train.py)\n" in (project / "out/env.sh").read_text()
    assert json.loads((project / "out/run.json").read_text())["code"] == {"live": True, "why": ""}
    done = kit("submit", "train.py", "--code", "lively", cwd=project, check=False)
    assert (done.returncode, done.stderr) == (
        2,
        "kit: --code: expected snapshot or live, not 'lively'\n  fix: snapshot: the code as it is now; live: as it is when the job starts\n",
    )


def test_a_program_that_git_ignores_is_live_and_said_so(kit, project: Path) -> None:
    git(project, "init")
    write(project, train_py="1", other_py="1")
    (project / ".gitignore").write_text("train.py\n")
    done = kit("render", "train.py", "--output", "out", cwd=project)
    assert "\n  code:          live: git or .kitignore ignores what the command names\n" in done.stdout
    (project / "job.yaml").write_text(json.dumps({"command": "{program}", "sweep": {"program": ["other.py", "train.py"]}}))
    done = kit("render", "job.yaml", "--output", "sweep", cwd=project)
    assert "\n  code:          live: git or .kitignore ignores what the command names\n" in done.stdout


def test_settings_that_git_ignores_are_live_and_named(kit, project: Path) -> None:
    """As a program writes them that submits one job after another, into its folder of results."""
    git(project, "init")
    write(project, train_py="1", conf_yaml="1", outputs__trial_yaml="1", outputs__old_json="1", _gitignore="outputs/\nvenv/\n", venv__bin__python="")
    (project / "venv/bin/python").chmod(0o755)
    words = "venv/bin/python train.py -c conf.yaml --config outputs/trial.yaml --save outputs/trial.yaml --data outputs/old.json"
    # What a script writes is before its reader's eyes.
    for key, line in (("command", words), ("script", words.replace(" --save outputs/trial.yaml", ""))):
        (project / "job.yaml").write_text(f"{key}: {line}\n")
        done = kit("render", "job.yaml", "--output", key, cwd=project)
        assert done.stderr == "kit: not in the snapshot of the code, so the job reads what is there when it runs: outputs/trial.yaml\n"


@pytest.mark.parametrize("line", ["/outputs/", "trial.yaml"])
def test_settings_that_kitignore_names_are_live_by_the_users_will(line: str, kit, project: Path) -> None:
    """As kit itself advises where a run is to read what an earlier one leaves."""
    git(project, "init")
    write(project, train_py="1", outputs__trial_yaml="1", _kitignore=f"{line}\n")
    (project / "job.yaml").write_text("command: train.py --config outputs/trial.yaml\n")
    assert kit("render", "job.yaml", "--output", "out", cwd=project).stderr == ""


def test_every_file_of_a_sweep_is_taken_from_the_snapshot(kit, project: Path) -> None:
    write(project, train_py="1", conf__a_yaml="1", conf__b_yaml="1")
    job = {"command": "train.py --c conf/{c}.yaml --x={c}.yaml --f {f}", "sweep": {"c": ["a", "b"], "f": ["conf/a.yaml", "/etc/x.yaml"]}}
    (project / "job.yaml").write_text(json.dumps(job))
    kit("render", "job.yaml", "--output", "out", cwd=project)
    c, f = '"${KIT_SWEEP_c[KIT_TASK]}"', '"${KIT_SWEEP_f[KIT_TASK]}"'
    code = '"${KIT_RUN_DIR}"/code'
    assert f"\nKIT_COMMAND=({code}/train.py --c {code}/conf/{c}.yaml --x={c}.yaml --f {f})\n" in (project / "out/env.sh").read_text()
    facts = json.loads((project / "out/run.json").read_text())
    assert facts["code"]["used"] == ["train.py", "conf/a.yaml", "conf/b.yaml"]


def test_what_another_mount_shows_in_the_working_directory_is_not_taken_for_its_own(kit, project: Path, tmp_path: Path) -> None:
    write(project, train_py="1", conf__a_yaml="mine")
    write(tmp_path, other__a_yaml="theirs")
    (project / "x.sif").touch()
    arguments = ("train.py", "--image", "x.sif", "--mount", f"{tmp_path}/other:{project}/conf", "--output", "out")
    kit("render", *arguments, "--", "conf/a.yaml", cwd=project)
    plan = json.loads((project / "out/run.json").read_text())["plan"]["program"]
    assert plan["command"] == [f"{project}/out/code/train.py", "conf/a.yaml"]


def test_the_jobs_own_pythonpath_follows_the_snapshot(kit, project: Path) -> None:
    write(project, train_py="1", src__pkg_py="1")
    (project / "empty").mkdir()
    kit("render", "train.py", "--output", "out", "--env", f"PYTHONPATH=src:.:{project}/src:/opt/x:empty", cwd=project)
    code = f"{project}/out/code"
    ((name, value),) = json.loads((project / "out/run.json").read_text())["plan"]["program"]["env"]
    assert (name, value.split(":")) == ("PYTHONPATH", [code, f"{code}/src", f"{code}/src", "/opt/x", "empty"])


def test_a_dry_run_shows_the_words_and_copies_nothing(kit, project: Path) -> None:
    write(project, train_py="1")
    shown = kit("submit", "train.py", "--dry-run", "--output", "out", cwd=project).stdout
    assert '\nKIT_CODE="${KIT_RUN_DIR}"/code # frozen at submission; first on PYTHONPATH\nKIT_COMMAND=("${KIT_RUN_DIR}"/code/train.py)\n' in shown
    assert sorted(path.name for path in project.iterdir()) == ["train.py"]


def test_a_file_that_cannot_be_read_is_named_and_nothing_is_left(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(project, train_py="1")
    taken = snapshot.Snapshot(found(project), str(project), ("train.py",), False)

    def refuse(*arguments: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)  # root may read all
    with pytest.raises(KitError, match=f"cannot read {project}/train.py for the snapshot of the code: Permission denied"):
        snapshot.copy(taken, tmp_path / "code", {})
    monkeypatch.undo()
    (project / "train.py").unlink()
    assert snapshot.copy(taken, tmp_path / "other", {})["files"] == 0  # an editor's temporary file may vanish


def test_a_disk_that_fills_up_leaves_nothing(kit, project: Path) -> None:
    write(project, train_py="1")
    (project / "large.py").write_bytes(b"#" * 3_000_000)
    script = "ulimit -f 1000; trap '' XFSZ; exec \"$@\""  # 512 or 1,024 bytes each
    done = subprocess.run(
        ["bash", "-c", script, "bash", os.sys.executable, "-m", "kit", "render", "train.py", "--output", "out"], cwd=project, capture_output=True, text=True
    )  # type: ignore[attr-defined]
    assert (done.returncode, done.stderr) == (
        1,
        f"kit: cannot write {project}/out: File too large\n  fix: raise this shell's limit for the size of files: ulimit -f unlimited\n",
    )
    assert sorted(path.name for path in project.iterdir()) == ["large.py", "train.py"]


def test_a_refused_submission_leaves_nothing(kit, project: Path) -> None:
    write(project, train_py="1")
    done = kit("submit", "train.py", cwd=project, check=False, PATH="/usr/bin:/bin")
    assert done.returncode == 1 and "sbatch is not installed here" in done.stderr
    assert [path.name for path in (project / "runs").iterdir()] == [".gitignore"]


def test_a_checkout_that_git_cannot_read_is_listed_without_it(kit, project: Path) -> None:
    write(project, train_py="1", pkg__a_py="1")
    (project / ".git").write_text("gitdir: /nowhere\n")
    assert names(project) == ["pkg/a.py", "train.py"]
    done = kit("render", "train.py", "--output", "out", cwd=project)
    fix = "`git status` there tells why, and fetches what a partial clone lacks"
    assert done.stderr == f"kit: git cannot list the files of {project}: the snapshot of the code holds what looks like code; {fix}\n"


def test_a_wholly_ignored_folder_of_a_checkout_is_listed_without_git(project: Path) -> None:
    git(project, "init")
    (project / ".gitignore").write_text("/scratch/\n")
    write(project, scratch__train_py="1")
    assert names(project / "scratch") == ["train.py"]
