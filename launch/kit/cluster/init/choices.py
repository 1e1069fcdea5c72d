"""Decide what a profile and a first job say about a site, each with its reason."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Optional

from kit.base.errors import KitError
from kit.cluster.facts import Partition, has_private_tmp
from kit.cluster.init.decision import Decision
from kit.cluster.init.survey import LOCAL, TEMPORARY, Site, account_for, folders_of, usable_of
from kit.cluster.probe import NOT_BETWEEN_NODES, Machine
from kit.config import image_files, plugins
from kit.config.plugins import Plugin
from kit.plan import this_machine
from kit.registry import oci
from kit.slurm import numbers

FABRICS = {
    "gb200": re.compile(r"\b(gb[23]00|nvl72)\b", re.IGNORECASE),
    "infiniband": re.compile(r"\b(ib|infiniband|edr|hdr|ndr|fdr|roce)\b", re.IGNORECASE),
    "efa": re.compile(r"\befa\b", re.IGNORECASE),
    "slingshot": re.compile(r"\b(slingshot\d*|cxi)\b", re.IGNORECASE),
    "omni-path": re.compile(r"\b(opa|omni-?path)\b", re.IGNORECASE),
}
TCPXO = "/dev/aperture_devices"  # Google's A3 Mega alone has them
AZURE = "7783-7084-3265-9085-8269-3286-77"  # the chassis of each of its virtual machines
IMEX = "/dev/nvidia-caps-imex-channels"  # of racks whose GPUs NVLink connects


def partition(site: Site, chosen: Partition) -> Decision:
    limit = "no time limit"
    if chosen.time_limit_s:
        limit = f"time limit {numbers.time_limit(chosen.time_limit_s)}"
    if site.is_partition_named:
        return Decision(chosen.name, f"--partition named it; {limit}")
    which = "the largest"
    if chosen.default:
        which = "the default partition"
    elif chosen.has_gpus:
        which = "has GPUs, unlike the default partition"
    usable = usable_of(site.partitions, site.accounts)
    others = [item.name for item in usable if item.name != chosen.name]
    if not others:
        return Decision(chosen.name, f"{which}, {limit}")
    more = f"there are also {', '.join(others[:6])}{' ...' if len(others) > 6 else ''}"
    return Decision(chosen.name, f"{which}, {limit}; {more}", "another suits you")


def runtime(site: Site) -> Decision:
    """Decide what runs image files; no value if nothing was found."""
    of_files = [item for item in plugins.runtimes(local=False) if ".sqsh" in item.words("images")]
    known = plugins.without_twins(of_files, lambda item: _is_available(item, site))
    available = [item for item in known if _is_available(item, site)]
    machine = site.job_machine
    where = f"on {machine.name}" if machine else f"on this login node; {site.why_no_node}"
    if not available:
        none = f"none of {', '.join(dict.fromkeys(item.tool for item in known))} {where}"
        if site.cluster:
            missing = " or ".join(item.srun_option for item in known if item.srun_option)
            return Decision("", f"{none}, and srun has no {missing}", "the nodes have one")
        engines = engines_here(site)
        scheme = engines[0].words("images")[0] if engines else ""
        names = " and ".join(item.tool for item in engines)
        more = f"; {names} for images {scheme}NAME" if engines else ""
        return Decision("", f"{none}, for image files{more}", "you install one")
    first = available[0]
    if option := first.srun_option:
        return Decision(first.name, f"srun has {option}")
    others = ", ".join(item.name for item in available[1:])
    why = f"{first.name} {where}" + (f"; also {others}" if others else "")
    return Decision(first.name, why, "" if machine else "the nodes have another")


def _is_available(runtime: Plugin, site: Site) -> bool:
    if option := runtime.srun_option:
        return option in site.srun_options
    return bool((site.job_machine or site.here).tool(runtime.tool))


def engines_here(site: Site) -> list[Plugin]:
    """Return the runtimes on this machine that run images for `kit run` alone."""
    return [item for item in plugins.runtimes(local=True) if site.here.tool(item.tool)]


def gpu_directive(site: Site) -> Decision:
    if not any(item.has_gpus for item in site.partitions.values()):
        change = "nodes are given whole with GPUs that Slurm does not know: none"
        return Decision("", "Slurm knows of no GPUs here", change)
    select = site.config.get("SelectType", "")
    if select == "select/cons_tres":
        types = site.config.get("GresTypes", "")
        return Decision("gpus-per-node", f"SelectType={select}, GresTypes={types}")
    return Decision("gres", f"SelectType={select or '(unknown)'}, which knows no --gpus-per-node")


def scratch(site: Site) -> Decision:
    """Decide for the node's own disk with the most room; no value for /tmp, the default."""
    machine = site.job_machine
    if machine is None:
        why = f"{TEMPORARY} of a node was not seen: {site.why_no_node}"
        return Decision("", why, "that is small, or in memory")
    folders = folders_of(machine)
    seen = {path: folders[path] for path in LOCAL if path in folders}
    room = {path: disk.free_mib for path, disk in seen.items() if disk.is_a_disk and disk.writable}
    usual = folders.get(TEMPORARY)
    is_private = has_private_tmp(site.config)
    usual_room = usual.free_mib if usual and usual.is_a_disk and not is_private else 0
    words = f"{machine.name} has no {TEMPORARY}"
    if usual:
        words = f"{TEMPORARY} of {machine.name} is {usual.type}"
    if is_private:
        words = f"each job has its own {TEMPORARY}, so what it unpacks there is lost to the next"
    best = max(room, key=lambda path: room[path], default="")
    if best and room[best] > 1.5 * usual_room:
        disk = f"{best} of {machine.name} is {seen[best].type}"
        room_there = "" if is_private else f", with more room than {TEMPORARY}"
        return Decision(best, f"{disk}{room_there}; {words}")
    change = "a node has a disk of its own: in memory, containers take RAM"
    if is_private:
        change = "a node has another folder on its own disk"
    return Decision("", words, "" if usual_room else change)


def fabric(site: Site) -> Decision:
    """Decide for a profile of env/; infiniband includes RoCE, and no value stands for Ethernet."""
    if machine := site.job_machine:
        return _seen_fabric(machine, machine.name)
    kinds = site.partition.kinds if site.partition else ()
    features = sorted({feature for kind in kinds for feature in kind.features})
    for name, pattern in FABRICS.items():
        if match := next((feature for feature in features if pattern.search(feature)), None):
            return Decision(name, f"nodes have the feature '{match}'", "they have another network")
    if _is_on_azure(site.here):
        why = "the login node is a virtual machine of Azure"
        return Decision("azure", why, "the nodes have no InfiniBand")
    seen = _seen_fabric(site.here, "the login node")
    if seen.value:
        return seen._replace(change="the nodes have another network")
    why = f"no RDMA device on the login node, no such feature of the nodes; {site.why_no_node}"
    return Decision("", why, "the nodes have InfiniBand")


def _seen_fabric(machine: Machine, name: str) -> Decision:
    """Decide by the devices of a machine, which the reason calls by this name."""
    kind, folders = machine.one("fabric")[0], machine.all("devices")  # with devices in them
    if kind == "cxi":
        return Decision("slingshot", f"{name} has an adapter in /sys/class/cxi")
    if [TCPXO] in folders:
        return Decision("gcp", f"{name} has {TCPXO}")
    rdma = {words[0]: words[2] for words in machine.all("rdma") if len(words) > 2}
    if not rdma:
        between = (item for item in machine.interfaces() if not item.startswith(NOT_BETWEEN_NODES))
        networks = ", ".join(between) or "unknown"
        return Decision("", f"{name} has no RDMA device; its network: {networks}")
    devices = [f"{device} ({link})" if link else device for device, link in rdma.items()]
    why = f"{name} has {', '.join(devices)}"
    if any(device.startswith(("efa", "rdmap")) for device in rdma):
        return Decision("efa", why)
    if [IMEX] in folders and any(re.search("GB[23]00", gpu) for gpu in machine.one("gpu")):
        return Decision("gb200", f"{why}, and {IMEX}")
    if kind == "opa":
        return Decision("omni-path", why)
    if _is_on_azure(machine) and "InfiniBand" in rdma.values():
        return Decision("azure", f"{why}, and is a virtual machine of Azure")
    return Decision("infiniband", why)


def platform(site: Site) -> str:
    """Return that of the nodes as `kit build` names it; "" if it is this machine's."""
    here, there = (item.one("machine")[0] for item in (site.here, site.job_machine or site.here))
    return f"linux/{oci.ARCHITECTURES.get(there, there)}" if there and there != here else ""


def _is_on_azure(machine: Machine) -> bool:
    return machine.one("chassis")[0] == AZURE


def account(site: Site, chosen: Partition) -> Decision:
    """Decide for an account; no value if Slurm chooses the right one by itself."""
    if site.accounts is None:
        return Decision("", "Slurm keeps no accounts here")
    mine, usual = account_for(site, chosen), site.account
    names = ", ".join(sorted(site.accounts))
    if len(site.accounts) == 1:
        return Decision("", f"yours is {names}, which Slurm takes by itself")
    why = f"{usual or 'the default one'} may not use {chosen.name}"
    if mine == usual:
        why = f"{mine} is the default one"
    return Decision(mine, f"yours are {names}; {why}", "a job is to be charged to another")


def folder(site: Site, project: Path) -> Decision:
    """Decide whether the nodes see the project's folder. Raises KitError if a node lacks it."""
    mine = folders_of(site.here).get(str(project))
    if not site.cluster:
        return Decision("here", f"{project} is on this machine")
    if mine is None:
        return Decision("unknown", f"{project} was not seen", "nodes do not see it")
    if site.node:
        return _folder_on_node(site.node, site.here, project)
    if mine.is_shared:
        return Decision("shared", f"it is on {mine.type}", "the nodes do not see it")
    change = "the nodes do not see it: then start from another folder"
    return Decision("unknown", f"it is on {mine.type}, which is seldom shared", change)


def _folder_on_node(node: Machine, here: Machine, project: Path) -> Decision:
    theirs, ours = folders_of(node), folders_of(here)
    found = theirs.get(str(project))
    if found and found.is_same(ours[str(project)]):
        return Decision("shared", f"{node.name} sees it")
    if found:
        change = "it is the same: else start from another folder"
        return Decision("not shared", f"{project} is another folder on {node.name}", change)
    common = [path for path, seen in theirs.items() if path in ours and seen.is_same(ours[path])]
    example = f", such as one below {common[0]}" if common else ""
    fix = f"start from a folder that all nodes share{example}; if it is one: kit init --no-look"
    raise KitError(f"{node.name} does not see {project}", fix)


def image(site: Site, project: Path, given: Optional[str], runs: Decision) -> Decision:
    """Decide for an image; no value if there is none, or nothing here would run it."""
    if given is not None:
        return Decision(given, "--image named it")
    place = f"{image_files.FOLDER}/"
    found = _image_files(project)
    engine, is_runnable = "", bool(runs.value or site.cluster)
    if found and not is_runnable:
        file = Path(image_files.anchored(found[0], project))
        engine = this_machine.engine_of(image_files.origin(file))
    if found and (is_runnable or engine):
        others = f"; also {', '.join(found[1:])}" if found[1:] else ""
        change = "you want another" if others else ""
        runner = f", and {engine} has what it was made of" if engine else ""
        return Decision(found[0], f"{place} has it{runner}{others}", change)
    lack = f"nothing here runs {found[0]}" if found else f"no image in {place}"
    if site.job_machine and (torch := site.job_machine.one("torch", 2)[1]):
        found_torch = f"python3 on {site.job_machine.name} has torch {torch}"
        return Decision("", f"{lack}; {found_torch}, so it runs without one")
    where = "on the nodes" if site.cluster else "here"
    why = f"{lack}, and no torch seen for python3 {where}"
    return Decision("", why, "one is built: kit build --name first")


def _image_files(project: Path) -> list[str]:
    """Return images as a job file names them: those of kit build, then others, newest first."""
    place = project / image_files.FOLDER
    try:
        names = image_files.given_names(project)
        built = {str(image_files.record(path).get("file")) for path in place.glob("*.json")}
        files = [path for path in place.iterdir() if os.path.exists(path)]  # no link to nothing
    except OSError:
        return []
    images = [path for path in files if path.suffix in image_files.SUFFIXES]
    others = [path for path in images if path.name not in built and not path.name.startswith(".")]
    others.sort(key=lambda path: -path.stat().st_mtime)
    return [*names, *(f"{image_files.FOLDER}/{path.name}" for path in others)]


def profile_name(cluster: str, taken: set[str]) -> str:
    """Return a file name for a cluster: Slurm allows more, and kit's own profiles are taken."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", cluster).strip("-_")[:60]
    name = name or ("cluster" if cluster else "local")
    return f"{name}-cluster" if name in taken else name
