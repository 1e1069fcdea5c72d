"""Whatever command of kit is typed, nothing of the user's changes: neither here nor on a cluster elsewhere, behind a real sshd.

Both homes hold files of the user's in every place where kit writes or cleans, old ones with likely names. After each command all of
them are what they were, and nothing else is new but what kit may make there. What kit left there long ago is gone in the end.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from kit.images.store import DIGITS
from kit.remote.landing import MARK

import two_homes
from samples import docker_archive
from two_homes import UID, Laptop, LoginNode

pytestmark = pytest.mark.slow

LONG_AGO = time.time() - 400 * 86400
ID = "0123456789abcdef"
KITS = "fedcba9876543210"  # of what kit made itself
SHORT, LONG, ODD = ID[:-1], f"{ID}0", f"{ID[:-1]}g"  # no ID by one letter
assert len(ID) == DIGITS

# ---------------------------------------------------------------- what the user has

# FILE; FOLDER/; LINK -> TARGET; NAME => FILE, a hard link; FIFO |
IN_A_HOME = f"""
thesis/t.tex
thesis/{MARK}
thesis/chapter one.tex => thesis/t.tex
thesis/record.json
.cache/kit/mine.txt
.cache/kit/layers/mine.txt
.cache/kit/layers/{ID * 4}/x
.cache/kit/layers/{ID * 3}{SHORT}
.cache/kit/layers/{ID * 3}{ODD}
.cache/kit/layers/.{ID * 4}.partial
.cache/kit/layers/.{ID * 4}.x.partial |
.cache/kit/layers/{KITS * 3}{ID} -> ../../../thesis/t.tex
.cache/kit-notes/old.txt
.cache/kitty/scrollback
.local/state/kit/mine.txt
.local/state/kit/bad-nodes.txt
.local/state/kit-notes/x
.kit/x
.kit-notes.abcdefgh/x
kit2/x
kit-0.1.0-{ID}/thesis.tex
.kit-0.1.0-{ID}.01234567/thesis.tex
build/result-{ID}/result.h5
build/my-cmake-results/result.h5
runs/mine/notes.txt
images/cat.png
work/project/train.sh
locked/x
"""
# Below kit's folder on the login node, and below a folder that is none of kit's.
WHERE_KIT_CLEANS = f"""
kit-experiments-2025/thesis.tex
kit-0.1.0-{ID}/thesis.tex
kit-0.1.0-{ID}/build/
kit-0.1.0-{SHORT}/{MARK}
kit-0.1.0-{LONG}/{MARK}
kit-0.1.0-{ODD}/{MARK}
kit-0.1.0-{ID}.bak/{MARK}
Kit-0.1.0-{ID}/{MARK}
kit-marked/{MARK}
kit-0.2.0-{ID} -> ../thesis
kit-0.3.0-{ID} |
.kit-notes/x
.kit-0.1.0-{ID}.0123456/{MARK}
.kit-0.1.0-{ID}.01234567/thesis.tex
my results 2024/a b.txt
build/my-cmake-results/result.h5
build/other-{ID}/result.h5
build/other-{SHORT}/{MARK}
build/{ID}/{MARK}
build/two words-{ID}/a b.h5
build/link-{ID} -> ../../thesis
build/gone-{ID} -> nowhere
build/hard-{ID}/t.tex => thesis/t.tex
build/pipe-{ID} |
build/locked-{ID}/x
calls/mine/call.sh
calls/{ID}/call.sh
calls/{SHORT}/{MARK}
given/mine/x
given/mine-{ID}/x
given/mine-{SHORT}/{MARK}
bad-nodes/mine.txt
runs/mine/log/notes.txt
runs/.kit-notes/x
work/project/notes of mine.txt
work/project/results/best.pt
work/project/latest -> results
work/thesis -> ../../thesis
"""
IN_IMAGES = f"""
cat.png
cat.json
cat.log
my pictures/a b.png
dog-{ID}.sqsh
dog-{ID}.log
elsewhere-{ID}.json
absolute-{ID}.json
link-{ID}.sqsh -> ../../thesis/t.tex
link-{ID}.json
record-{ID}.sqsh
record-{ID}.json -> ../../thesis/record.json
short-{SHORT}.sqsh
short-{SHORT}.json
other-{ID}.sqsh
other-{ID}.json
pipe.json |
pipe-{ID}.json |
pipe-{KITS}.sqsh |
pipe-{KITS}.json
.notes.partial
.thesis.partial/x
.cat-{SHORT}.sqsh.12.partial
.cat-{ID}.partial
.cat-{ID}.sqsh.12.partially
.cat-{SHORT}.lock
.folder-{ID}.lock/
.link-{ID}.lock -> ../../thesis/t.tex
.pipe-{ID}.lock |
.notes-{ID}.lock
"""
IN_SCRATCH = f"""
notes.txt
images/notes.sqsh
images/{SHORT}.sqsh
images/cat-{ID}.sif
images/{ID}.sif -> ../notes.txt
enroot/data/kit-experiments/x
enroot/data/kit-{SHORT}/x
enroot/data/mine/x
cache/mine/x
cache/kit-cache-/x
"""
ON_THE_LOGIN_NODE = """
clone/.git/HEAD
clone/setup.py
results/.hidden
a file
a pipe |
to home -> .
to files -> results
to nothing -> nowhere
unreadable/x
kit/work/project/runs/r-theirs/sub/user.txt
"""
IN_THE_PROJECT = """
data/large.bin
fifo |
to data -> data
to nothing -> nowhere
runs/mine/log/notes.txt
runs/.kit-notes.abcdefgh/x
runs/.kit-notes/x
empty/
"""
RECORDS = {  # what lies in images/ beside pictures, and looks like kit's
    "cat.json": {"file": "cat.png", "label": "cat"},
    f"elsewhere-{ID}.json": {"file": "../../thesis/t.tex"},
    f"absolute-{ID}.json": {"file": "HOME/thesis/t.tex"},
    f"link-{ID}.json": {"file": f"link-{ID}.sqsh"},
    "record.json": {"file": f"record-{ID}.sqsh"},
    f"short-{SHORT}.json": {"file": f"short-{SHORT}.sqsh"},
    f"other-{ID}.json": {"file": f"dog-{ID}.sqsh"},
    f"pipe-{KITS}.json": {"file": f"pipe-{KITS}.sqsh"},
    f"old-{KITS}.json": {"file": f"old-{KITS}.sqsh"},
}
# What kit made, long ago: it is to go.
KITS_BELOW_IT = f"kit-0.0.1-{KITS}/{MARK}\n.kit-0.0.1-{KITS}.01234567/{MARK}\ngiven/job-{KITS}/{MARK}\ncalls/{KITS}/{MARK}"
KITS_IMAGES = f"old-{KITS}.sqsh\nold-{KITS}.json\nold-{KITS}.log\n.old-{KITS}.sqsh.12.partial\n.old-{KITS}.abc.partial/x"
KITS_SCRATCH = f"images/{KITS}.sqsh\nenroot/data/kit-{KITS}/.kit-complete\ncache/kit-cache-{KITS}-GPU/triton/kernel"
KITS_CACHE = f".cache/kit/layers/{KITS * 4}\n.cache/kit/layers/.{KITS * 4}.abc_1.partial"
KITS_RUNS = f".kit-old.abcdefgh/{MARK}"


def below(folder: str, lines: str) -> str:
    return "".join(f"{folder}/{line}\n" for line in lines.split("\n") if line)


def plant(home: Path, lines: str) -> None:
    """Makes all of them, with old dates."""
    made: list[Path] = []
    for line in lines.split("\n"):
        name, arrow, target = next((line.partition(mark) for mark in (" -> ", " => ", " |") if mark in line), (line, "", ""))
        if not name:
            continue
        path = home / name
        (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
        if arrow == " -> ":
            path.symlink_to(target)
        elif arrow == " => ":
            os.link(home / target, path)
        elif arrow:
            os.mkfifo(path)
        elif not name.endswith("/"):
            record = RECORDS.get(path.name)
            text = json.dumps({"kit": "0.1.0", "digest": ID, "sha256": "abc", "size": 3, **record}) if record else f"mine: {line}\n"
            path.write_text(text.replace("HOME", str(home)))
        made += [path, *(folder for folder in path.parents if folder != home and home in folder.parents)]
    for path in made:
        os.utime(path, (LONG_AGO, LONG_AGO), follow_symlinks=False)


# ---------------------------------------------------------------- what became of it


class Facts(NamedTuple):
    kind: int
    mode: int
    inode: int
    size: int = 0
    changed_ns: int = 0
    content: str = ""

    @classmethod
    def of(cls, path: Path) -> Facts:
        found = path.lstat()
        kind, mode = stat.S_IFMT(found.st_mode), stat.S_IMODE(found.st_mode)
        if stat.S_ISDIR(found.st_mode):
            return cls(kind, mode, found.st_ino)
        if not stat.S_ISREG(kind):
            return cls(kind, mode, found.st_ino, content=os.readlink(path) if stat.S_ISLNK(kind) else "")
        return cls(kind, mode, found.st_ino, found.st_size, found.st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest())


class Watched:
    """What is the user's on one side, and all that is there beside it."""

    def __init__(self, base: Path, may_be_new: str) -> None:
        self.base, self.may_be_new = base, re.compile("|".join(may_be_new.strip().splitlines()))
        self.known: dict[str, Facts] = {}
        self.told: set[str] = set()

    def keep(self, *folders: Path) -> None:
        """These folders, and what is in them now, are the user's."""
        for path in (path for folder in folders for path in (folder, *folder.rglob("*"))):
            self.known[str(path.relative_to(self.base))] = Facts.of(path)

    def changes(self) -> list[str]:
        """What is not as it was; each is said once."""
        said = []
        for name, before in list(self.known.items()):
            try:
                now = Facts.of(self.base / name)
            except OSError:
                said.append(f"{name} is gone")
                del self.known[name]
                continue
            if now != before:
                differs = [key for key in Facts._fields if getattr(now, key) != getattr(before, key)]
                said.append(f"{name} has another {', '.join(differs)}")
                self.known[name] = now
        return said + [f"{name} is new" for place in ("home", "scratch") for name in self._new(place)]

    def _new(self, folder: str) -> Iterator[str]:
        with suppress(PermissionError), os.scandir(self.base / folder) as entries:
            for entry in sorted(entries, key=lambda item: item.name):
                name = f"{folder}/{entry.name}"
                if name in self.known:
                    if entry.is_dir(follow_symlinks=False):
                        yield from self._new(name)
                elif not self.may_be_new.fullmatch(name) and name not in self.told:
                    self.told.add(name)
                    yield name


# ---------------------------------------------------------------- both homes


class World:
    def __init__(self, base: Path) -> None:
        for name in ("here", "far"):
            (base / name).mkdir()
        self.laptop, self.login = Laptop(base / "here"), LoginNode(base / "far")
        self.project = self.laptop.home / "project"
        self.kit_there = self.login.home / "kit"
        self._make_project()
        self._write_profiles()
        for side in (self.laptop, self.login):
            plant(side.home, IN_A_HOME + below(f"{'project' if side is self.laptop else 'kit'}/images", IN_IMAGES))
            plant(side.base / f"scratch/kit-{UID}", IN_SCRATCH)
        plant(self.login.home, below("kit", WHERE_KIT_CLEANS) + below("clone", WHERE_KIT_CLEANS) + ON_THE_LOGIN_NODE)
        plant(self.project, IN_THE_PROJECT)
        self.locked = {self.laptop.home / "locked": 0o500, self.login.home / "locked": 0o500, self.kit_there / f"build/locked-{ID}": 0o500}
        self.locked[self.login.home / "unreadable"] = 0o300
        for folder, mode in self.locked.items():
            folder.chmod(mode)
        self.here, self.far = Watched(self.laptop.base, MAY_BE_NEW_HERE), Watched(self.login.base, MAY_BE_NEW_THERE)

    def _make_project(self) -> None:
        self.project.mkdir()
        subprocess.run(["git", "init", "-q", str(self.project)], check=True, env={"PATH": os.environ["PATH"], "HOME": "/"})
        files = {
            ".gitignore": "data/\n",
            "train.sh": "echo told\n",
            "job.yaml": "command: [bash, train.sh]\nlauncher: srun\nruntime: none\n",
            "image.yaml": "command: [bash, train.sh]\nlauncher: srun\nruntime: apptainer\nimage: my.sif\n",
            "my.sif": "an image",
            "broken.tar": "no tar",
        }
        for name, text in files.items():
            (self.project / name).write_text(text)
        docker_archive(self.project / "mine.tar")

    def _write_profiles(self) -> None:
        folder = self.laptop.home / ".config/kit/clusters"
        folder.mkdir(parents=True)
        for name, ssh_dir in {"far": "kit", **FOLDERS}.items():
            (folder / f"{name}.yaml").write_text(f"ssh: login\nssh_dir: {json.dumps(ssh_dir)}\nscratch: {self.login.base}/scratch\n")
        (folder / "here.yaml").write_text(f"scratch: {self.laptop.base}/scratch\n")

    def begin(self) -> None:
        """All that is there now is the user's."""
        self.login.let_in(self.laptop)
        for watched in (self.here, self.far):
            watched.keep(watched.base / "home", watched.base / "scratch")
        (self.kit_there / MARK).touch()  # what an earlier kit is told to do, which made that folder
        left = {self.kit_there: KITS_BELOW_IT, self.kit_there / "images": KITS_IMAGES, self.project / "images": KITS_IMAGES, self.project / "runs": KITS_RUNS}
        left |= {side.base / f"scratch/kit-{UID}": KITS_SCRATCH for side in (self.laptop, self.login)}
        left |= {side.home: KITS_CACHE for side in (self.laptop, self.login)}
        for folder, lines in left.items():
            plant(folder, lines)
        self.left_by_kit = [folder / line for folder, lines in left.items() for line in lines.split("\n")]

    def run_there(self, name: str) -> Path:
        return self.kit_there / "work/project/runs" / name

    def note(self, *folders: Path) -> None:
        """The user puts notes into these folders of kit's."""
        for folder in folders:
            watched = self.here if folder.is_relative_to(self.laptop.base) else self.far
            before = set(folder.rglob("*"))
            plant(folder, NOTES + f"log/of this side, {watched.base.name}.txt\n")
            for path in set(folder.rglob("*")) - before:
                watched.known[str(path.relative_to(watched.base))] = Facts.of(path)


NOTES = "my notes.txt\nlog/my notes.txt\nlog/tb/events.out\nlog/thesis -> ../../../../thesis\nlog/pipe |\n"


# ---------------------------------------------------------------- what happens between the commands


def a_node_failed(world: World) -> None:
    notes = world.login.home / ".local/state/kit/bad-nodes/far"
    notes.parent.mkdir(parents=True, exist_ok=True)
    notes.write_text(f"{int(time.time())} node3 does not answer\n")


def the_job_runs(world: World) -> None:
    there = world.run_there("r-first")
    (there / "log/1001").mkdir(parents=True)
    (there / "log/slurm-1001.out").write_text("epoch 1 loss 0.5 important\n")
    (there / "log/1001/rank0.out").write_text("epoch 1 loss 0.5 important\n")
    world.login.slurm.job("1001", "RUNNING", folder=str(there))
    world.note(there)


def the_site_purges(world: World) -> None:
    for path in (world.run_there("r-first") / "log").rglob("*.out"):
        if str(path.relative_to(world.login.base)) not in world.far.known:
            path.unlink()


def the_job_ends(world: World) -> None:
    """Meanwhile the user has moved its logs to a larger disk."""
    logs, elsewhere = world.run_there("r-first") / "log", world.login.home / "logs of mine"
    logs.rename(elsewhere)
    logs.symlink_to(elsewhere)
    for name in [name for name in world.far.known if "/r-first/log/" in name]:
        del world.far.known[name]
    world.far.keep(logs, elsewhere)
    world.login.slurm.job("1001", "FAILED", exit_code="3:0", folder=str(world.run_there("r-first")))


def kits_own_name_is_taken(world: World) -> None:
    (copy,) = (path.parent for path in world.kit_there.glob("kit-*/__main__.py"))
    plant(world.login.home, f"taken/{MARK}\ntaken/{copy.name}/kit/thesis.tex")
    world.far.keep(world.login.home / "taken")


def sbatch_refuses(world: World) -> None:
    world.login.slurm.says("sbatch", "sbatch: error: invalid partition specified: x\n")


def sbatch_is_cut(world: World) -> None:
    world.login.slurm.says("sbatch", "sbatch: error: Socket timed out on send/recv operation\n")


def the_user_writes_notes(world: World) -> None:
    """And a while has gone by: until then nobody knows whether Slurm has the job."""
    world.note(world.run_there("r-lost"))
    history = world.login.home / ".local/state/kit/runs.jsonl"
    lines = [json.loads(line) for line in history.read_text().splitlines()]
    history.write_text("".join(json.dumps({**line, "created_s": line["created_s"] - 300}) + "\n" for line in lines))


def slurm_is_here(world: World) -> None:
    world.laptop.give_slurm()


def slurm_here_refuses(world: World) -> None:
    world.laptop.slurm.says("sbatch", "sbatch: error: invalid partition specified: x\n")


# ---------------------------------------------------------------- what is typed


class Typed(NamedTuple):
    words: str
    code: int
    says: str
    before: Callable[[World], None] = lambda world: None


# {profile: its ssh_dir}, none of which is kit's.
FOLDERS = {
    "root": "/", "up": "..", "home": ".", "tilde": "~/", "clone": "clone", "kit-up": "kit/..", "hidden": "results", "file": "a file",
    "pipe": "a pipe", "to-home": "to home", "to-files": "to files", "to-nothing": "to nothing", "unreadable": "unreadable", "taken": "taken", "locked": "locked/kit", "new": "my results/kit's $(id)",
}  # fmt: skip
TYPED = [
    Typed("images --cluster far", 0, f"old-{KITS}.sqsh"),
    Typed("images gc --cluster far --days 1", 0, "nothing is removed without --yes"),
    Typed("images gc --cluster far --days 1 --yes", 0, "kit: done"),
    Typed("build mine.tar --name mine --cluster far", 0, "image: mine"),
    Typed("build broken.tar --cluster far", 1, "broken.tar"),
    Typed("doctor --cluster far", 1, ""),
    Typed("nodes --cluster far", 0, "node3", a_node_failed),
    Typed("nodes --cluster far --forget node3", 0, "node3 is used again"),
    Typed("when job.yaml --cluster far", 1, "in none of these"),
    Typed("submit job.yaml --cluster far --dry-run", 0, "run_script.sh"),
    Typed("submit job.yaml --cluster far --test-only", 0, "2030"),
    Typed("submit job.yaml --cluster far --name first --output runs/r-first", 0, "submitted job 1001"),
    Typed("status", 0, "PENDING"),
    Typed("status first", 0, "RUNNING", the_job_runs),
    Typed("logs first", 0, "important"),
    Typed("logs first", 1, "has no log", the_site_purges),
    Typed("exec first -- true", 1, "has not started its ranks yet"),
    Typed("hang first", 1, ""),
    Typed("logs first -f", 3, "FAILED", the_job_ends),
    Typed("why first", 0, ""),
    Typed("timeline first", 1, ""),
    Typed("runs", 0, "FAILED"),
    Typed("rerun r-first --output runs/r-second", 0, "submitted job 1002"),
    Typed("diff r-first r-second", 0, ""),
    Typed("cancel 1002", 0, "is being cancelled"),
    Typed("submit job.yaml --cluster far --name refused --output runs/r-refused", 1, "invalid partition", sbatch_refuses),
    Typed("submit job.yaml --cluster far --name lost --output runs/r-lost", 1, "is not known", sbatch_is_cut),
    Typed("status lost", 0, "SUBMITTING"),
    Typed("cancel lost", 0, "was never submitted", the_user_writes_notes),
    Typed("status lost", 0, "it was never submitted"),
    Typed("cancel lost", 0, "has ended: CANCELLED"),
    Typed("rerun lost", 1, "is not a run directory"),
    Typed("submit job.yaml --cluster far --output runs/r-theirs", 2, "already exists"),
    Typed("submit image.yaml --cluster far --output runs/r-image", 0, "submitted job"),
    Typed("submit image.yaml --image pipe --cluster far --output runs/r-x", 2, "there is no image pipe"),
    Typed("submit image.yaml --image fifo --cluster far --output runs/r-x", 1, "it is not a regular file"),
    Typed("images --cluster taken", 1, "is not kit's", kits_own_name_is_taken),
    Typed("render job.yaml --cluster far --output runs/r-rendered", 0, "wrote"),
    Typed("bench job.yaml -j 2x1 --cluster far --dry-run", 0, "run_script.sh"),
    Typed("shell job.yaml --cluster far", 1, ""),
    Typed("submit job.yaml --cluster new --output runs/r-new", 0, "submitted job"),
    Typed("images --cluster new", 0, "no images"),
    # Every folder with one command, and every command with one folder.
    *(Typed(f"submit job.yaml --output runs/r-x --cluster {name}", 1, "cannot make") for name in ("locked", "to-nothing")),
    *(Typed(f"images gc --yes --cluster {name}", 2, "cannot be kit's folder there") for name in ("root", "up", "home", "tilde", "kit-up")),
    *(
        Typed(f"submit job.yaml --output runs/r-x --cluster {name}", 1, "is not kit's")
        for name in ("hidden", "file", "pipe", "to-home", "to-files", "unreadable")
    ),
    *(
        Typed(f"{words} --cluster clone", 1, "is not kit's")
        for words in (
            "images", "images gc --days 1 --yes", "build mine.tar", "doctor", "nodes", "nodes --forget node3", "submit job.yaml --output runs/r-x",
            "bench job.yaml", "shell job.yaml", "when job.yaml",
        )
    ),
    Typed("images", 0, f"old-{KITS}.sqsh"),
    Typed("images gc --days 1 --cluster here", 0, "nothing is removed without --yes"),
    Typed("images gc --days 1 --cluster here --yes", 0, "kit: done"),
    Typed("images --images data gc --days 1 --yes", 0, "nothing of yours that has not been used"),
    Typed("build mine.tar --name mine", 0, "image: mine"),
    Typed("build broken.tar", 1, "broken.tar"),
    Typed("run job.yaml --name here --output runs/r-here", 0, "told"),
    *(
        Typed(f"run job.yaml --output {where}", 2, "already exists")
        for where in ("runs/mine", ".", "..", "/", "~", "data", "train.sh", "fifo", "'to data'", "'to nothing'")
    ),
    Typed("render job.yaml --output data", 2, "already exists"),
    Typed("status here", 0, "COMPLETED"),
    Typed("logs here", 0, "told"),
    Typed("why here", 0, ""),
    Typed("timeline here --svg runs/r-drawn.svg", 0, ""),
    Typed("rerun here --output runs/r-again", 0, "told"),
    Typed("rerun here --output runs/mine", 2, "already exists"),
    Typed("diff r-here r-again", 0, ""),
    Typed("cancel here", 0, "has ended"),
    Typed("init", 2, "exists already"),
    Typed("shell --local", 0, ""),
    Typed("submit job.yaml --name local --output runs/r-local", 0, "submitted job", slurm_is_here),
    Typed("submit job.yaml --name refused --output runs/r-refused", 1, "invalid partition", slurm_here_refuses),
    Typed("cancel local", 0, "is being cancelled"),
]  # fmt: skip
# What kit may make beside what is the user's.
MAY_BE_NEW_THERE = rf"""
home/kit/({re.escape(MARK)}|kit-[^/]+-[0-9a-f]{{16}}|calls|given)
home/kit/given/(clusters|image|job)-[0-9a-f]{{16}}
home/kit/images/(mine-[0-9a-f]{{16}}\.(sqsh|json|log)|mine\.json|my-[0-9a-f]{{16}}\.sif)
home/kit/work/project/runs/(r|project)-[a-z0-9-]+
home/kit/work/project/(\.kit-brought\.json|\.gitignore|[a-z]+\.(yaml|sh|sif|tar)|to\ (data|nothing)|images)
home/my\ results
.*{KITS}.*
home/\.local/state/kit/(runs.jsonl|bad-nodes)
home/\.cache/kit/images.json
"""
MAY_BE_NEW_HERE = r"""
home/project/runs/r-[a-z.]+
home/project/runs/[a-z]+-[0-9]{8}-[0-9]{6}-[0-9a-f]+
home/project/images/(mine-[0-9a-f]{16}\.(sqsh|json|log)|mine\.json)
home/\.local/state/kit/(runs\.jsonl|elsewhere\.jsonl|origin|calls)
home/\.cache/kit/images\.json
.*fedcba9876543210.*
home/project/runs/\.kit-old\.abcdefgh
"""


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    if lacks := two_homes.lacks():
        pytest.skip(lacks)
    # Words between blanks are what sshd takes for paths, and what the fake Slurm says.
    with tempfile.TemporaryDirectory(prefix="kit-homes-", dir="/tmp") as place:
        made = World(Path(place))
        with made.login.serving():
            made.begin()
            with made.laptop.serving():
                yield made
        for folder in made.locked:
            folder.chmod(0o700)


def write_over(path: Path) -> None:
    """With as many bytes, and with the date that it had."""
    path.write_text(path.read_text().replace("mine", "MINE"))
    os.utime(path, (LONG_AGO, LONG_AGO))


def replace_by_a_copy(path: Path) -> None:
    shutil.copy2(path, path.with_name("copy"))
    path.with_name("copy").replace(path)


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("a/x", Path.unlink, ["home/a/x is gone"]),
        ("a/x", write_over, ["home/a/x has another content"]),
        ("a/x", replace_by_a_copy, ["home/a/x has another inode"]),
        ("a/x", Path.touch, ["home/a/x has another changed_ns"]),
        ("a/x", lambda path: path.chmod(0o600), ["home/a/x has another mode"]),
        ("a", lambda path: path.chmod(0o700), ["home/a has another mode"]),
        ("link", lambda path: (path.rename(path.parent / "kits/own"), path.symlink_to("a/x")), ["home/link has another inode, content"]),
        ("pipe", Path.unlink, ["home/pipe is gone"]),
        ("a/new", Path.mkdir, ["home/a/new is new"]),
        ("kits/anything", Path.mkdir, ["home/kits/anything is new"]),
        ("kits/own", Path.mkdir, []),
    ],
)
def test_each_change_is_noticed_once(name: str, change: Callable[[Path], object], said: list[str], tmp_path: Path) -> None:
    for folder in ("home", "scratch"):
        (tmp_path / folder).mkdir()
    plant(tmp_path / "home", "a/x\nlink -> a\npipe |\nkits/mine")
    (tmp_path / "home/a/x").chmod(0o644)
    watched = Watched(tmp_path, "home/kits/own")
    watched.keep(tmp_path / "home")
    assert watched.changes() == []
    change(tmp_path / "home" / name)
    assert watched.changes() == said
    assert watched.changes() == []


def test_nothing_of_the_users_changes_whatever_is_typed(world: World) -> None:
    said = []
    for typed in TYPED:
        typed.before(world)
        words = [str(world.laptop.home) if word == "~" else word for word in shlex.split(typed.words)]
        done = world.laptop.kit(*words, folder=world.project)
        if done.code != typed.code or typed.says not in done.out + done.err:
            said.append(f"kit {typed.words}: {done.code} instead of {typed.code}, or without '{typed.says}':\n{done.out[-1500:]}{done.err[-1500:]}")
        said += [f"kit {typed.words}: {side.base.name}: {change}" for side in (world.here, world.far) for change in side.changes()]
    said += [f"{path} is kit's own, and old, and still there" for path in world.left_by_kit if os.path.lexists(path)]
    assert not said, "\n".join(said)
