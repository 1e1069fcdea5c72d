"""Keys stay where they are: no run directory, no image and no cluster gets a copy of one, unless git tracks it. Real git, real files."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from kit.base.errors import KitWarning, Problems, UsageError
from kit.images import recipe
from kit.images.build_request import BuildRequest
from kit.plan import git_facts, key_files, source_files

MARK = "zq-a-value-of-mine-"  # in each key file, with its number
TOKEN = "hf" + "_" + "aBcDeFgHiJkLmNoPqRsTuVwXyZ01234567"  # put together here, so that nobody who searches for tokens finds one
BY_NAME = (
    ".env", "sub/.env.local", ".envrc", "prod.env", ".netrc", ".pgpass", ".git-credentials", ".npmrc", ".pypirc", ".bash_history", "id_rsa",
    "sub/id_ed25519_work", "server.pem", "sub/deploy.key", "cert.p12", "credentials.json", "token", "api_key.txt", "secrets.yaml",
    "client_secret_12-ab.json", "kaggle.json",
)  # fmt: skip
IN_HIDDEN_FOLDERS = (".ssh/id_ed25519", ".aws/credentials", ".gnupg/private.bin", ".kube/config", ".docker/config.json", ".config/app/x", ".secrets/values")
BY_TEXT = ("notes.md", "sub/client.py")
KEYRING = "ring.yaml"
HARMLESS = (
    "train.py", "sub/lib.py", "id_map.json", "id_rsa.pub", "tokens.txt", "tokenizer.json", "sub/token.py", "sub/secrets.py", "sub/keys.py", "keyboard.md",
    "history.csv", "environment.yaml", "next_token.yaml", "ca.pem",
)  # fmt: skip
IDENTITY = ("-c", "user.name=a", "-c", "user.email=a@b")


@pytest.fixture(autouse=True)
def own_git_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", "/dev/null")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    for name in HARMLESS:
        write(folder / name, "print(1)\n" if name.endswith(".py") else "{}\n")
    write(folder / "ca.pem", "-----BEGIN CERTIFICATE-----\nMII\n-----END CERTIFICATE-----\n")
    for number, name in enumerate((*BY_NAME, *IN_HIDDEN_FOLDERS)):
        write(folder / name, f"{MARK}{number}\n")
    for name in BY_TEXT:
        write(folder / name, f"# {MARK}text {TOKEN}\n")
    write(folder / KEYRING, f"A: {MARK}ring\n")
    (folder / KEYRING).chmod(0o600)
    (folder / "job.yaml").write_text(json.dumps({"command": "train.py", "runtime": "none", "launcher": "srun", "secrets": {"A": {"file": KEYRING}}}))
    monkeypatch.chdir(folder)
    return folder


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", *IDENTITY, *words], cwd=folder, check=True, capture_output=True)


def commit(folder: Path, *names: str) -> None:
    git(folder, "init")
    git(folder, "add", "--force", *names)
    git(folder, "commit", "-m", "x")


def found(folder: Path) -> source_files.Sources:
    problems = Problems()
    result = source_files.find(str(folder), "code", problems, [str(folder / KEYRING)])
    problems.raise_if_any()
    return result


def regular(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]


def holding_values(folder: Path) -> list[str]:
    """Files, by their own content and not that of a link's target, in which a key's value stands."""
    return [str(path.relative_to(folder)) for path in regular(folder) if MARK.encode() in path.read_bytes()]


@pytest.mark.parametrize("by_git", [False, True])
def test_what_would_be_copied_has_no_key_with_and_without_git(by_git: bool, project: Path) -> None:
    if by_git:
        commit(project, "train.py")
    result = found(project)
    assert sorted(result.names) == sorted([*HARMLESS, "job.yaml"])
    assert sorted(result.keys) == sorted([*BY_NAME, *BY_TEXT, KEYRING])
    assert [note for note in result.notes if "keys are not in the snapshot of the code, but linked there, and live: " in note]


@pytest.mark.parametrize("by_git", [False, True])
def test_no_run_directory_has_one_and_the_program_finds_them_by_links(by_git: bool, project: Path, kit) -> None:
    if by_git:
        commit(project, "train.py")
    write(project / "train.py", "import pathlib\nprint('found', (pathlib.Path(__file__).parent / '.env').read_text())\n")
    done = kit("run", "job.yaml", "--code", "snapshot", "--output", "r1", cwd=project)
    assert "kit: keys are not in the snapshot of the code, but linked there, and live: .bash_history, .env, " in done.stderr
    run = project / "r1"
    logs = [str(path.relative_to(run)) for path in (run / "log").rglob("*") if path.is_file()]
    assert set(holding_values(run)) <= set(logs) and f"found {MARK}" in done.stdout  # what the program prints is its own affair
    assert os.readlink(run / "code/.env") == str(project / ".env") and os.readlink(run / "code" / KEYRING) == str(project / KEYRING)
    assert not (run / "code/.ssh").exists() and not (run / ".secrets").exists()
    kit("rerun", "r1", "--output", "r2", cwd=project)
    assert set(holding_values(project / "r2/code")) == set() and not (project / "r2/.secrets").exists()


def test_what_git_tracks_is_copied_and_said(project: Path, kit) -> None:
    commit(project, "train.py", ".env", ".ssh/id_ed25519", KEYRING, "notes.md")
    result = found(project)
    assert {".env", ".ssh/id_ed25519", KEYRING, "notes.md"} == set(result.tracked_keys) == set(result.names) - {*HARMLESS, "job.yaml"}
    done = kit("submit", "job.yaml", "--dry-run", cwd=project)
    assert "kit: these look like keys, and are copied, since git tracks them: .env, .ssh/id_ed25519, notes.md, ring.yaml\n" in done.stderr


def test_a_keyring_is_left_out_by_whatever_name_it_is_there(project: Path) -> None:
    os.link(project / KEYRING, project / "other-name.txt")
    assert "other-name.txt" in found(project).keys


def test_hidden_folders_that_git_does_not_track_are_left_out_as_they_are_without_git(project: Path) -> None:
    for name in (".github/workflows/ci.yaml", ".vscode/settings.json", "sub/.cache/x"):
        write(project / name, "x")
    without = set(found(project).names)
    commit(project, "train.py")
    assert set(found(project).names) == without
    git(project, "add", ".github")
    assert set(found(project).names) == {*without, ".github/workflows/ci.yaml"}


@pytest.mark.parametrize("by_git", [False, True])
def test_no_image_gets_one_and_what_stays_out_is_said(by_git: bool, project: Path, tmp_path: Path) -> None:
    (project / KEYRING).unlink()  # `kit build` knows of no job
    write(project / "Dockerfile", "FROM x\nCOPY . /opt/\n")
    if by_git:
        commit(project, "train.py", ".netrc")
    (tmp_path / "context").mkdir()
    notes: list[str] = []
    load("Dockerfile").lay_out(tmp_path / "context", notes.append)
    tracked = [".netrc"] if by_git else []
    assert holding_values(tmp_path / "context") == tracked
    laid_out = {str(path.relative_to(tmp_path / "context")) for path in regular(tmp_path / "context")}
    assert {*HARMLESS, "job.yaml", "Dockerfile", *tracked} == laid_out
    assert notes[0].startswith("keys are not in the image: .aws/credentials, .bash_history, ")
    assert notes[1:] == ["these look like keys, and are copied, since git tracks them: .netrc"] * by_git


def test_a_recipe_that_names_a_key_is_refused_with_its_line(project: Path) -> None:
    write(project / "Dockerfile", "FROM x\nCOPY train.py /opt/\nCOPY id_rsa /root/.ssh/\n")
    with pytest.raises(UsageError, match=r"Dockerfile:3: id_rsa looks like a key, and an image takes none in\n  fix: .*git add id_rsa"):
        load("Dockerfile").files()
    commit(project, "id_rsa")
    assert load("Dockerfile").files() == ["id_rsa", "train.py"]


def load(name: str) -> recipe.Recipe:
    return recipe.load(Path(name).absolute(), Path.cwd(), "image", BuildRequest())


def test_a_program_that_holds_a_token_is_live_and_kit_says_why(project: Path, kit) -> None:
    write(project / "train.py", f"TOKEN = '{TOKEN}'\n")
    done = kit("submit", "job.yaml", "--dry-run", cwd=project)
    assert TOKEN not in done.stdout + done.stderr
    (project / "bin").mkdir()
    write(project / "bin/sbatch", "#!/bin/sh\necho 7\n")
    (project / "bin/sbatch").chmod(0o755)
    done = kit("submit", "job.yaml", "--output", "r1", cwd=project, PATH=f"{project}/bin:{os.environ['PATH']}")
    assert "\n  code:          live: train.py looks like a key, or has one in its text, and is not copied\n" in done.stdout


def test_a_recorded_diff_leaves_out_keys_and_kit_diff_prints_none(project: Path, kit) -> None:
    names = ("credentials.json", "with space.pem", "notes.md", KEYRING, "train.py", "settings.txt", "deploy.txt")
    write(project / "with space.pem", "old\n")
    write(project / "settings.txt", "address = none\n")
    write(project / "deploy.txt", "-----BEGIN RSA " + "PRIVATE KEY-----\n" + "line\n" * 20)
    commit(project, *names)
    runs = []
    for run in ("r1", "r2"):
        for name in names[:3]:
            write(project / name, f"{MARK}{run}\n")
        write(project / KEYRING, f"A: {MARK}{run}\n")
        write(project / "settings.txt", f"address = {TOKEN}\n")
        write(project / "deploy.txt", (project / "deploy.txt").read_text() + f"{MARK}{run}\n")
        write(project / "train.py", f"print('{run}')\n")
        kit("run", "job.yaml", "--output", run, cwd=project)
        record = (project / run / "run.json").read_text()
        assert MARK not in record.replace(f"{MARK}text", "") and TOKEN not in record
        assert f"+print('{run}')" in json.loads(record)["git"]["diff"]
        runs.append(run)
    shown = kit("diff", *runs, cwd=project, check=False).stdout
    assert "print('r2')" in shown and MARK not in shown and TOKEN not in shown


def test_a_recorded_diff_has_no_text_of_a_file_that_was_removed(project: Path) -> None:
    """It may have been a keyring: nobody can ask it any longer. Its text is in git's revision."""
    commit(project, KEYRING, "train.py", "sub/lib.py")
    (project / KEYRING).unlink()
    (project / "sub/lib.py").unlink()
    write(project / "train.py", "print(2)\n")
    recorded = git_facts.find(str(project), [str(project / KEYRING)])
    assert recorded and MARK not in recorded["diff"] and "-print(1)\n+print(2)\n" in recorded["diff"]
    assert "deleted file mode 100644" in recorded["diff"] and f"a/{KEYRING}" in recorded["diff"]


def test_kit_diff_prints_no_key_of_two_copies_nor_of_an_older_record(project: Path, kit) -> None:
    commit(project, "credentials.json", KEYRING, "train.py")
    for run in ("r1", "r2"):
        write(project / "credentials.json", f"{MARK}{run}\n")
        write(project / KEYRING, f"A: {MARK}{run}\n")
        kit("run", "job.yaml", "--output", run, "--code", "snapshot", cwd=project)
    shown = kit("diff", "r1", "r2", cwd=project, check=False).stdout
    assert "credentials.json: differs, and looks like a key\n" in shown and "ring.yaml: differs, and looks like a key\n" in shown and MARK not in shown
    for run in ("r1", "r2"):
        record = json.loads((project / run / "run.json").read_text())
        diff = f"diff --git a/sub/.env b/sub/.env\n+X={MARK}{run}\ndiff --git a/x b/x\n+{run}\n"
        (project / run / "run.json").write_text(json.dumps({**record, "code": {"live": True}, "git": {"revision": "1", "diff": diff}}))
    shown = kit("diff", "r1", "r2", cwd=project, check=False).stdout
    assert "+r2" in shown and MARK not in shown


def test_no_program_that_a_checkout_names_for_git_is_started(project: Path) -> None:
    commit(project, "train.py", "sub/lib.py")
    write(project / "spy", f'#!/bin/sh\ntouch {project}/spied\ncat "$1" 2>/dev/null\n')
    (project / "spy").chmod(0o755)
    for option in ("core.fsmonitor", "diff.external", "diff.odd.textconv"):
        git(project, "config", option, f"{project}/spy")
    write(project / ".gitattributes", "*.py diff=odd\n")
    write(project / "train.py", "print(2)\n")
    (project / "spied").unlink(missing_ok=True)
    found(project)
    recorded = git_facts.find(str(project), [])
    assert recorded and "+print(2)" in recorded["diff"]
    assert not (project / "spied").exists()


def test_no_program_of_a_remote_is_started_to_fetch_a_file_that_a_partial_clone_lacks(project: Path) -> None:
    commit(project, "train.py")
    write(project / "train.py", "print(2)\n")
    for file in (project / ".git/objects").glob("[0-9a-f][0-9a-f]/*"):
        name = file.parent.name + file.name
        if subprocess.run(["git", "cat-file", "-t", name], cwd=project, capture_output=True, text=True).stdout == "blob\n":
            file.unlink()
    for option, value in {"url": "/nowhere", "promisor": "true", "uploadpack": "touch spied; false"}.items():
        git(project, "config", f"remote.origin.{option}", value)
    git(project, "config", "core.repositoryformatversion", "1")
    git(project, "config", "extensions.partialClone", "origin")
    found(project)
    with pytest.warns(KitWarning, match=f"git cannot tell what differs from its revision in {project}, "):
        assert "diff" not in (git_facts.find(str(project), []) or {"diff"})
    assert not (project / "spied").exists()
    subprocess.run(["git", "diff", "HEAD"], cwd=project, capture_output=True)
    assert (project / "spied").exists()  # so git alone would have started it


def test_what_a_run_says_of_git_is_the_whole_checkouts_also_from_a_folder_of_it(project: Path) -> None:
    commit(project, "train.py", "sub/lib.py", ".env")
    for name in ("train.py", "sub/lib.py", ".env"):
        write(project / name, f"print('{MARK}')\n" if name == ".env" else "print(3)\n")
    recorded = git_facts.find(str(project / "sub"), [])
    assert recorded and len(recorded["revision"]) == 40
    assert "b/train.py" in recorded["diff"] and "b/sub/lib.py" in recorded["diff"] and MARK not in recorded["diff"]


def test_a_run_of_live_code_names_the_programs_that_git_does_not_have(kit, project: Path) -> None:
    """Else its record would call a revision the program that ran, which is in none. Runs and their results are no programs."""
    commit(project, ".")
    for run in ("r1", "r2", "r3"):
        kit("render", "train.py", "--code", "live", "--output", run, cwd=project)
        write(project / f"{run}.pt", "weights\n")
        if run == "r2":
            assert kit("diff", "r1", "r2", cwd=project).returncode == 0
            write(project / "new/ü.py", "pass\n")
    assert json.loads((project / "r3/run.json").read_text())["git"]["untracked"] == ["new/ü.py"]
    done = kit("diff", "r1", "r3", cwd=project, check=False)
    assert done.returncode == 1 and "\n  +untracked: new/ü.py\n" in done.stdout


def test_changes_of_large_data_are_named_and_not_recorded(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command reads the record, which kit refuses above 64 MiB: no run of such a checkout could begin."""
    write(project / "data.csv", "x\n")
    commit(project, "data.csv", "train.py")
    write(project / "data.csv", "1,2,3\n" * 1000)
    monkeypatch.setattr(git_facts, "MOST", 7200)  # the data alone, which come first, would fit
    write(project / "train.py", "print(3)\n")
    recorded = git_facts.find(str(project), [])
    assert recorded and "+print(3)" in recorded["diff"] and "1,2,3" not in recorded["diff"]
    assert re.search(r"^diff --git a/data.csv b/data.csv\n\(too large for the run's record: 7,\d\d\d characters of changes\)$", recorded["diff"], re.MULTILINE)


@pytest.mark.parametrize("name", [*BY_NAME, *IN_HIDDEN_FOLDERS])
def test_names_of_keys_are_known(name: str) -> None:
    assert key_files.is_key(name) and key_files.is_key(f"deep/er/{name}")


@pytest.mark.parametrize("name", [name for name in HARMLESS if not name.endswith(".pem")])
def test_names_that_only_sound_alike_are_not(name: str) -> None:
    assert not key_files.is_key(name)


def test_many_files_are_refused_before_any_is_read_and_a_fifo_stops_nothing(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(project / "token.txt")
    os.mkfifo(project / "pipe")
    assert not {"token.txt", "pipe"} & {*found(project).names, *found(project).keys}
    monkeypatch.setattr(source_files, "MOST_FILES", 3)
    monkeypatch.setattr(key_files, "among", lambda *_: pytest.fail("a file was read"))
    with pytest.raises(UsageError, match="more than 3 files"):
        found(project)


@pytest.mark.skipif(not shutil.which("rsync"), reason="needs rsync")
@pytest.mark.parametrize("by_git", [False, True])
def test_what_is_listed_for_a_cluster_elsewhere_takes_no_value_along(by_git: bool, project: Path, tmp_path: Path) -> None:
    if by_git:
        commit(project, "train.py")
    listed = "".join(f"{name}\0" for name in found(project).names).encode()
    (tmp_path / "far").mkdir()
    # As Host.send_listed does it.
    subprocess.run(["rsync", "--from0", "--files-from=-", "--no-implied-dirs", "--update", "-lpt", f"{project}/", f"{tmp_path}/far/"], input=listed, check=True)
    assert holding_values(tmp_path / "far") == [] and (tmp_path / "far/train.py").exists()
