"""What a first job and a profile should say, with the reason for each: found, or guessed and then what to change."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Optional

from kit import images
from kit.errors import KitError
from kit.site.facts import Kind, Partition
from kit.site.survey import LOCAL, TEMPORARY, Site, account_for, usable_of

CONTAINERS = ("enroot", "pyxis", "apptainer")  # those for image files, in the order in which kit takes them
RANKS = 4  # at most, of a first job on CPUs
CPUS_OF_A_RANK = 4
FABRICS = {"infiniband": re.compile(r"\b(ib|infiniband|edr|hdr|ndr|fdr|roce)\b", re.IGNORECASE), "efa": re.compile(r"\befa\b", re.IGNORECASE)}


class Point(NamedTuple):
    """One thing that was decided; no value where nothing is to be set."""

    value: str
    why: str
    change: str = ""  # a guess: when to change it

    @property
    def how(self) -> str:
        return "guessed" if self.change else "found"

    @property
    def comment(self) -> str:
        return f"# guessed: {self.why} - change it if {self.change}" if self.change else f"# found: {self.why}"


@dataclass(frozen=True)
class Shape:
    """How much a first job asks for; all but `nodes` per node."""

    nodes: int
    processes: int
    gpus: int
    cpus: int
    time: str
    memory_gib: int = 0
    one_type: str = ""  # what keeps to GPUs of one type, where nodes differ


def shape(site: Site, *, example: bool) -> tuple[Shape, Point]:
    time_s = 600 if example else 3600
    partition = site.partition
    if partition is None:
        return _local_shape(site)
    kind = max(partition.kinds, key=lambda item: (item.all_gpus > 0, item.count, item.all_gpus))
    alike = [item for item in partition.kinds if item.all_gpus >= kind.all_gpus]
    count, cpus = sum(item.count for item in alike), min(item.cpus for item in alike) - site.reserved_cpus
    ranks = kind.all_gpus or max(1, min(RANKS, cpus // 2))
    whole = kind.all_gpus or partition.exclusive
    nodes = min(2, count, partition.most_nodes or 2)
    limit_s = partition.time_limit_s or time_s
    words = "; ".join(_nodes(item) for item in alike)
    if site.reserved_cpus:
        words += f"; Slurm keeps {site.reserved_cpus} CPUs of a node for the system"
    found = Shape(
        nodes,
        ranks,
        kind.all_gpus,
        cpus if whole else min(cpus, ranks * CPUS_OF_A_RANK),
        clock(min(time_s, limit_s)),
        round(min(item.memory_mb for item in alike) / 1024),
        f"gpu:{next(iter(kind.gpus))}:{kind.all_gpus}" if len({name for item in alike for name in item.gpus}) > 1 and len(kind.gpus) == 1 else "",
    )
    return found, Point(f"{nodes} x {ranks} ranks", f"{partition.name} has {words}")


def _local_shape(site: Site) -> tuple[Shape, Point]:
    here = site.here
    gpus = len(here.gpus)
    ranks = gpus or max(1, min(2, here.cpus // 2))
    nodes = 1 if gpus else 2  # on CPUs, as a rehearsal of a cluster
    words = f"{here.cpus} CPUs" + (f", {gpus} x {here.gpus[0]}" if gpus else ", no GPU")
    return Shape(nodes, ranks, gpus, 0, ""), Point(f"{nodes} x {ranks} ranks", f"this machine has {words}")


def _nodes(kind: Kind) -> str:
    gpus = ", ".join(f"{number} x {name or 'GPU'}" for name, number in kind.gpus.items())
    return f"{kind.count} node{'s' if kind.count != 1 else ''} of {kind.cpus} CPUs, {kind.memory_mb / 1024:.0f} GiB, {gpus or 'no GPU'}"


def partition(site: Site, chosen: Partition) -> Point:
    others = [item.name for item in usable_of(site.facts, site.accounts) if item.name != chosen.name]
    more = f"; there are also {', '.join(others[:6])}{' ...' if len(others) > 6 else ''}" if others else ""
    limit = f"time limit {clock(chosen.time_limit_s)}" if chosen.time_limit_s else "no time limit"
    which = (
        "the default partition" if chosen.default else "has GPUs, which the default partition has not" if any(k.gpus for k in chosen.kinds) else "the largest"
    )
    if site.is_partition_named:
        return Point(chosen.name, f"--partition named it; {limit}")
    if not others:
        return Point(chosen.name, f"{which}, {limit}")
    return Point(chosen.name, f"{which}, {limit}{more}", "another suits you")


def runtime(site: Site) -> Point:
    """What runs image files; no value where nothing was found."""
    there = [name for name in CONTAINERS if (name in site.there.tools or (name == "pyxis" and site.pyxis))]
    where = f"on {site.there.host}" if site.node or not site.cluster else f"on this login node; {site.why_no_node}"
    if not there and site.cluster:
        return Point("", f"none of enroot, apptainer {where}, and srun has no Pyxis", "the nodes have one")
    if not there:
        engines = " and ".join(name for name in site.here.tools if name in ("docker", "podman"))
        more = f"; {engines} for images docker://NAME" if engines else ""
        return Point("", f"none of enroot, apptainer {where}, for image files{more}", "you install one")
    if there[0] == "pyxis":
        return Point("pyxis", "srun has --container-image")
    why = f"{there[0]} {where}" + (f"; also {', '.join(there[1:])}" if there[1:] else "")
    return Point(there[0], why, "" if site.node or not site.cluster else "the nodes have another")


def gpu_directive(site: Site) -> Point:
    if not any(kind.gpus for item in site.facts.partitions.values() for kind in item.kinds):
        return Point("", "Slurm knows of no GPUs here", "nodes are given whole with GPUs that Slurm does not know: none")
    select = site.config.get("SelectType", "")
    if select == "select/cons_tres":
        return Point("gpus-per-node", f"SelectType={select}, GresTypes={site.config.get('GresTypes', '')}")
    return Point("gres", f"SelectType={select or '(unknown)'}, which knows no --gpus-per-node")


def scratch(site: Site) -> Point:
    """The node's own disk with the most room; no value where that is /tmp, which is taken anyway."""
    look = site.node or (None if site.cluster else site.here)
    if look is None:
        return Point("", f"{TEMPORARY} of a node was not seen: {site.why_no_node}", "that is small, or in memory")
    disks = {path: look.folders[path] for path in LOCAL if path in look.folders and look.folders[path].is_a_disk and look.folders[path].writable}
    usual = look.folders.get(TEMPORARY)
    room = usual.free_kib if usual and usual.is_a_disk else 0
    words = f"{TEMPORARY} of {look.host} is {usual.type}" if usual else f"{look.host} has no {TEMPORARY}"
    best = max(disks, key=lambda path: disks[path].free_kib, default="")
    if best and disks[best].free_kib > 1.5 * room:
        return Point(best, f"{best} of {look.host} is {disks[best].type}, with more room than {TEMPORARY}; {words}")
    return Point("", words, "" if room else "a node has a disk of its own: in memory, containers take RAM")


def fabric(site: Site) -> Point:
    """infiniband (RoCE, too), efa, or no value for plain Ethernet."""
    look = site.node or (None if site.cluster else site.here)
    if look:
        devices = ", ".join(f"{name} ({link})" if link else name for name, link in look.rdma.items())
        kind = "efa" if any(name.startswith(("efa", "rdmap")) for name in look.rdma) else "infiniband" if look.rdma else ""
        return Point(kind, f"{look.host} has " + (devices or f"no RDMA device; its network: {', '.join(look.networks) or 'unknown'}"))
    features = sorted({feature for kind in (site.partition.kinds if site.partition else ()) for feature in kind.features})
    for name, pattern in FABRICS.items():
        if match := next((feature for feature in features if pattern.search(feature)), None):
            return Point(name, f"nodes have the feature '{match}'", "they have another network")
    if site.here.rdma:
        return Point("infiniband", f"the login node has {', '.join(site.here.rdma)}", "the nodes have another network")
    return Point("", f"no RDMA device on the login node, no such feature of the nodes; {site.why_no_node}", "the nodes have InfiniBand")


def account(site: Site, chosen: Partition) -> Point:
    """No value where Slurm takes the right one by itself."""
    if site.accounts is None:
        return Point("", "Slurm keeps no accounts here")
    mine, usual = account_for(site, chosen), site.account
    names = ", ".join(sorted(site.accounts))
    if len(site.accounts) == 1:
        return Point("", f"yours is {names}, which Slurm takes by itself")
    if mine == usual:
        return Point(mine, f"yours are {names}; {mine} is the default one", "a job is to be charged to another")
    return Point(mine, f"yours are {names}; {usual or 'the default one'} may not use {chosen.name}", "a job is to be charged to another")


def folder(site: Site, project: Path) -> Point:
    """Whether the nodes see the project's folder. Raises KitError where one does not have it at all."""
    mine = site.here.folders.get(str(project))
    if mine is None or not site.cluster:
        return Point("here", f"{project} is on this machine") if not site.cluster else Point("unknown", f"{project} was not seen", "nodes do not see it")
    if site.node:
        theirs = site.node.folders.get(str(project))
        if theirs and theirs.is_same(mine):
            return Point("shared", f"{site.node.host} sees it")
        if theirs:
            return Point("not shared", f"{project} is another folder on {site.node.host}", "it is the same: else start from another folder")
        common = [path for path, there in site.node.folders.items() if path in site.here.folders and there.is_same(site.here.folders[path])]
        fix = f"start from a folder that all nodes share{', such as one below ' + common[0] if common else ''}; if it is one: kit init --no-look"
        raise KitError(f"{site.node.host} does not see {project}", fix)
    if mine.is_shared:
        return Point("shared", f"it is on {mine.type}", "the nodes do not see it")
    return Point("unknown", f"it is on {mine.type}, which is seldom shared", "the nodes do not see it: then start from another folder")


def image(site: Site, project: Path, given: Optional[str], runs: Point) -> Point:
    """No value where there is none, or nothing here would run it."""
    if given is not None:
        return Point(given, "--image named it")
    found = _image_files(project)
    if found and (runs.value or site.cluster):
        others = f"; also {', '.join(found[1:])}" if found[1:] else ""
        return Point(found[0], f"{images.FOLDER}/ has it{others}", "another is to be taken" if others else "")
    if site.there.torch and (site.node or not site.cluster):
        return Point("", f"no image in {images.FOLDER}/; python3 on {site.there.host} has torch {site.there.torch}, so it runs without one")
    return Point(
        "",
        f"no image in {images.FOLDER}/, and no torch seen for python3 " + ("on the nodes" if site.cluster else "here"),
        "one is built: kit build --name first",
    )


def _image_files(project: Path) -> list[str]:
    """Names of kit build first, then other files, the newest first; as a job file says them."""
    place = project / images.FOLDER
    try:
        names = [path for path in place.glob("*.json") if path.is_symlink() and images.named(path.stem, project)]
        built = {str(images.record(path).get("file")) for path in place.glob("*.json")}
        files = [path for path in place.iterdir() if path.suffix in images.SUFFIXES and path.name not in built and not path.name.startswith(".")]
    except OSError:
        return []
    newest = [sorted(paths, key=lambda path: -path.stat().st_mtime) for paths in (names, files)]
    return [path.stem for path in newest[0]] + [f"{images.FOLDER}/{path.name}" for path in newest[1]]


def clock(seconds: int) -> str:
    """As sbatch takes it."""
    days, rest = divmod(seconds, 86400)
    text = f"{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
    return f"{days}-{text}" if days else text


def profile_name(cluster: str, taken: set[str]) -> str:
    """A cluster's name as that of a file: Slurm allows more, and the profiles that come with kit stay what they are."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", cluster).strip("-_")[:60] or ("cluster" if cluster else "local")
    return f"{name}-cluster" if name in taken else name
