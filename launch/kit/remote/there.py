"""What a job needs of the cluster that its profile names by `ssh`: one question to the login node, before the plan is made."""

from __future__ import annotations

import os
import re
import string
import time
from pathlib import Path
from typing import NamedTuple, Optional

from kit import images, snapshot, values
from kit import nodes as noted
from kit.cluster import Cluster
from kit.errors import KitError, Problems, UsageError
from kit.job import Job
from kit.mounting import Place
from kit.remote.host import Host

_CHOSEN = re.compile(r"-\d{8}-\d{6}-[0-9a-f]+\Z")  # a name that rundir.choose made


class Remote(NamedTuple):
    """Of a plan whose paths are those of a cluster elsewhere: where that is, and what belongs to it here."""

    ssh: str
    folder: str  # kit's own, over there
    run_dir: str  # here; the plan's is over there
    workdir: str  # here; empty where it is over there, too
    image: Optional[str]  # the file here; None where it is over there already
    image_sha256: Optional[str]


class There:
    """A job with the paths of the login node, and what is at them."""

    def __init__(self, host: Host, cluster: Cluster, facts: dict[str, list[str]], paths: list[str]) -> None:
        self.host, self.cluster, self.facts = host, cluster, facts
        self.folder = facts["folder"][0]
        self.tools = set(facts.get("tool", []))
        self.folders = {paths[int(index)] for index in facts.get("folder-at", [])}
        sizes = (line.split() for line in facts.get("file-at", []))
        self.sizes = {paths[int(index)]: int(size) for index, size in sizes}
        self.bad_nodes = f"{self.folder}/bad-nodes/{_file_name(cluster.name)}"
        self.left_out = noted.among(facts.get("bad", []))

    job: Job  # the job as the login node has it
    remote: Remote
    run_dir: str
    fingerprint: Optional[str] = None  # of an image that is here
    has_image: bool = True  # if it is a file at all; False is a problem already

    @property
    def place(self) -> Place:
        return Place(f" on {self.host.name}", lambda path: path in self.folders or path in self.sizes, lambda path: path in self.folders)

    @property
    def mounts_here(self) -> tuple[values.Mount, ...]:
        """Where the program's files are looked for: in the working directory that is here."""
        here = self.remote.workdir
        return (values.Mount(here, here, False, ""),) if here else ()

    @property
    def scratch(self) -> str:
        known = {"USER": self.facts["user"][0], "HOME": self.facts["home"][0], "LOGNAME": self.facts["user"][0]}
        return string.Template(self.cluster.scratch).safe_substitute(known)

    def of_code(self, taken: snapshot.Code) -> snapshot.Code:
        """The copy's links lead to the working directory over there."""
        if taken.snapshot:
            # What is left out of the copy is linked to the working directory, and that one is over there.
            said = f"and not copied, but looked for in {self.job.workdir} on {self.host.name}"
            notes = tuple(note.replace("but linked there, and live", said) for note in taken.snapshot.notes)
            return taken._replace(snapshot=taken.snapshot._replace(workdir=str(self.job.workdir), notes=notes))
        if taken.key and self.remote.workdir:
            fix = "take the key out, and name it under `secrets:`; or have git track the file, if it is no key"
            raise UsageError(f"{taken.key} looks like a key, or has one in its text, and is not copied to {self.host.name}", fix)
        return taken if self.remote.workdir else taken._replace(why_live=f"the working directory is on {self.host.name}")


def look(job: Job, cluster: Cluster, run_dir: str, problems: Problems) -> There:
    """Asks for everything at once. Raises Unreachable, and KitError where kit cannot work over there."""
    host = Host(cluster.ssh)
    workdir_here = job.workdir or ""
    if job.where("workdir") and not os.path.isdir(workdir_here):
        workdir_here = ""
    image, digest = _image_here(job, problems)
    inside = f"images/{image_name(image, digest)}" if image and digest else ""
    record = f"images/{named}.json" if not image and (named := _bare_name(job)) else ""
    theirs = ["" if image else job.image, inside, record, "" if workdir_here else job.workdir]
    asked = [path for path in (*(mount.source for mount in job.mounts or ()), *theirs) if path]
    done = host.call("login::look", cluster.ssh_dir, _file_name(cluster.name), *asked, doing="looking there for what the job needs; nothing is submitted yet")
    facts: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        name, _, value = line.partition(" ")
        facts.setdefault(name, []).append(value)
    host.refuse_foreign(facts.get("foreign", [None])[0])
    _check_tools(host, set(facts.get("tool", [])))
    there = There(host, cluster, facts, asked)
    workdir = f"{there.folder}/work/{_file_name(workdir_here)}" if workdir_here else str(job.workdir)
    if workdir_here:
        there.folders.add(workdir)  # made at submission
        _check_live(job, workdir_here, host.name, problems)
    there.run_dir = f"{there.folder}/runs/{unique(os.path.basename(run_dir))}"
    image_there = f"{there.folder}/{inside}" if inside else job.image
    if image and inside in there.sizes and there.sizes[inside] == os.path.getsize(image):
        image = None  # it was copied before
    elif image_there and not inside and "://" not in image_there and image_there not in {*there.sizes, *there.folders}:
        built = facts.get("record-file")
        if built:
            image_there, digest = f"{there.folder}/images/{built[0]}", facts.get("record-sha256", [""])[0] or None
        else:
            there.has_image = False
            _say_lack(job, image_there, there, problems)
    if inside:
        there.fingerprint = images.fingerprint(Path(str(job.image)))
    there.job = job._replace(workdir=workdir, image=image_there)
    there.remote = Remote(host.name, there.folder, run_dir, workdir_here, image, digest)
    return there


def _bare_name(job: Job) -> str:
    """What may be a name of kit build: no path, and no file's ending. The job has it as a path in the folder that it was given in."""
    where = job.where("image")
    base = os.getcwd() if where.startswith("--") else os.path.dirname(os.path.abspath(where.rpartition(":")[0]))
    folder, name = os.path.split(job.image or "")
    return name if folder == base and not name.endswith(images.SUFFIXES) else ""


def _say_lack(job: Job, image: str, there: There, problems: Problems) -> None:
    name = _bare_name(job)
    if name:
        where = f"neither in {os.path.dirname(image)}/{images.FOLDER} here nor in {there.folder}/{images.FOLDER} on {there.host.name}"
        problems.add(job.where("image"), f"no image is called {name}, {where}", f"build one over there: kit build --cluster {there.cluster.name} --name {name}")
        return
    fix = "check the path; an image that is here is copied there, kit build makes one"
    problems.add(job.where("image"), f"no such image, neither here nor on {there.host.name}: {image}", fix)


def _file_name(path: str) -> str:
    return os.path.basename(path.rstrip("/")) or "root"


def unique(name: str) -> str:
    """A name for a run directory over there, where those of all projects are side by side."""
    return name if _CHOSEN.search(name) else f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid():x}"


def _check_tools(host: Host, tools: set[str]) -> None:
    for tool in ("sbatch", "rsync", "sha256sum"):
        if tool not in tools:
            raise KitError(f"{host.name} has no {tool}", "is that a login node of the cluster? the profile's key `ssh` names it")


def _check_live(job: Job, workdir: str, name: str, problems: Problems) -> None:
    if job.code == "live":
        fix = f"leave it out: a copy of the code travels with the run; or name a working directory of {name}: `workdir: /path/over/there`"
        problems.add(job.where("code"), f"`code: live` is for code that is on {name}, and {workdir} is here", fix)


def _image_here(job: Job, problems: Problems) -> tuple[Optional[str], Optional[str]]:
    """The file and its sha256; (None, None) where the image is none of this machine's files."""
    if not job.image or "://" in job.image or not os.path.exists(job.image):
        return None, None
    if os.path.isdir(job.image):
        problems.add(job.where("image"), f"the image {job.image} is a folder, and kit copies files", "make a file of it: apptainer build NAME.sif FOLDER")
        return None, None
    try:
        return job.image, images.check(Path(job.image)) or images.digest(Path(job.image))
    except KitError as error:
        problems.add(job.where("image"), error.problems[0].problem, error.problems[0].fix)
        return None, None


def image_name(image: str, digest: str) -> str:
    """Of kit build's own name, which has a digest of its inputs already, the first part."""
    stem, suffix = os.path.splitext(os.path.basename(image))
    return f"{re.sub(r'[^A-Za-z0-9._-]', '-', stem)}-{digest[:16]}{suffix}"
