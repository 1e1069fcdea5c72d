"""Checks of what a node needs for containers: the runtime, its place, and the job's image."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kit.cluster.doctor.checks import Found, check
from kit.cluster.doctor.inquiry import Inquiry, Needs, Node
from kit.cluster.facts import has_private_tmp
from kit.cluster.probe import IN_MEMORY, SHARED
from kit.config import plugins

LITTLE_MIB, SOME_MIB = 1024, 5 * 1024  # KIT_DISK_MB of lib/spares.sh, and room for an image
UNPACKED = 3  # times the size of its squashfs that an image mostly takes
FEW_INODES = 10000
# The branches of the driver, and the brands of GPUs, with which a newer CUDA's libraries
# (cuda-compat) work:
# https://docs.nvidia.com/deploy/cuda-compatibility/forward-compatibility.html
BRIDGED, DATA_CENTRE = ("535", "550", "570", "575"), ("nvidia", "tesla")


def seen_tools(node: Node, _: Inquiry) -> str:
    return ", ".join(f"{name} {version}" for name, version in node.all("tool"))


def _uses_namespaces(cluster: Inquiry) -> bool:
    return "user-namespaces" in cluster.plugin.facts


@check("runtime", seen=seen_tools, matters=lambda cluster: cluster.asked.runtime != "none")
def runtime(node: Node, cluster: Inquiry) -> Iterator[Found]:
    if cluster.runtime == "none":
        tools = dict.fromkeys(item.tool for item in plugins.runtimes(local=False))
        yield Found("no-runtime", f"none of {', '.join(tools)}")
        return
    needed = cluster.plugin.tool
    version, usual = node.tool(needed), cluster.usual("runtime", lambda other: other.tool(needed))
    if not version:
        problem = "unless-loaded" if cluster.asked.has_host_setup else "missing"
        yield Found(problem, f"{needed} is not on PATH there", {"runtime": needed})
    elif version != usual:
        yield Found("version", f"{needed} {version}, others have {usual}", {"runtime": needed})


@check("namespaces", matters=_uses_namespaces)
def namespaces(node: Node, cluster: Inquiry) -> Iterator[Found]:
    if not _lacks_namespaces(node, cluster):
        return
    name, (answer, restriction) = cluster.runtime, node.one("namespaces", 2)
    if restriction == "apparmor":
        yield Found("profile", answer, {"runtime": name})
    else:
        able = [
            item.name
            for item in plugins.runtimes()
            if item.facts.get("user-namespaces") == "unless-setuid"
        ]
        yield Found("refused", answer, {"setuid": " or ".join(able)})


def _lacks_namespaces(node: Node, cluster: Inquiry) -> bool:
    # unshare was tried, and has no profile of AppArmor's, as the runtime may have.
    is_setuid = any(words[0] == cluster.runtime for words in node.all("setuid"))
    is_fine = node.one("namespaces")[0] in ("ok", "unknown")
    return not (is_fine or is_setuid or node.one("start")[0] == "ok")


@check("subuid", matters=_uses_namespaces)
def subuid(node: Node, cluster: Inquiry) -> Iterator[Found]:
    # Many sites have no ranges at all, and most jobs need none.
    kinds = ("subuid", "subgid")
    missing = [f"/etc/{kind}" for kind in kinds if not node.one(kind)[0]]
    if not missing:
        return
    able = next(
        (other for other in cluster.answered if all(other.one(kind)[0] for kind in kinds)), None
    )
    if able or cluster.asked.remap_root:
        evidence = f"no line for {node.one('user')[0]} in {' and '.join(missing)}"
        if able:
            evidence += f"; {able.name} has {able.one('subuid')[0]}"
        yield Found("missing", evidence)


def _place(node: Node, cluster: Inquiry) -> list[str]:
    """Return the facts of the folder to which images are unpacked or copied.

    They are: the folder, the part of it that exists, whether it can be written, its file system,
    free MiB, free inodes, all inodes.
    """
    places = node.all("containers") if cluster.unpacks else []
    of_runtime = (place for place in places if place[-1] == cluster.runtime)
    return next(of_runtime, node.one("scratch", 7))[:7]


@check("scratch")
def scratch(node: Node, cluster: Inquiry) -> Iterator[Found]:
    if owner := node.one("scratch-owner")[0] or node.one("containers-owner")[0]:
        yield Found("owner", owner)
        return
    for place in (node.one("scratch", 7), _place(node, cluster)):
        folder, existing, writable = place[:3]
        if writable not in ("yes", ""):
            is_missing = folder != existing and place == node.one("scratch", 7)
            missing = f"; {folder} is not there" if is_missing else ""
            yield Found("unwritable", f"{writable}{missing}", {"folder": folder})
            return
    if noexec := node.one("scratch-noexec")[0]:
        yield Found("noexec", fields={"folder": noexec})


def _seen_space(node: Node, cluster: Inquiry) -> str:
    folder, _, _, _, free, _, _ = _place(node, cluster)
    return f"{folder}: {int(free) // 1024} GiB free" if free.isdecimal() else ""


@check("space", seen=_seen_space)
def space(node: Node, cluster: Inquiry) -> Iterator[Found]:
    folder, existing, _, _, free, inodes, total = _place(node, cluster)
    unpacks = cluster.unpacks or cluster.asked.unpacks
    if not free.isdecimal():
        yield Found("unknown", existing)
        return
    free_mib = int(free)
    image_mib = cluster.asked.image_mib * (UNPACKED if cluster.unpacks else 1)
    needed_mib = max(LITTLE_MIB, image_mib)
    evidence = f"{free_mib} MiB free"
    if unpacks and free_mib < needed_mib:
        yield Found("full", f"{evidence}, needed: {needed_mib}", {"folder": folder})
    elif free_mib < (SOME_MIB if unpacks else LITTLE_MIB):
        yield Found("little", evidence, {"folder": folder})
    has_few = inodes.isdecimal() and int(inodes) < FEW_INODES
    if has_few and total not in ("0", "-", "") and free_mib >= LITTLE_MIB:
        yield Found("inodes", f"{inodes} inodes free", {"folder": folder})


@check("disk", seen=lambda node, cluster: _place(node, cluster)[3])
def disk(node: Node, cluster: Inquiry) -> Iterator[Found]:
    folder, _, _, kind = _place(node, cluster)[:4]
    variable = cluster.plugin.facts.get("containers-variable", "")
    fields = {"folder": folder, "runtime": cluster.runtime, "variable": variable}
    if SHARED.match(kind):
        needs_own_disk = cluster.plugin.facts.get("own-disk") == "yes"
        yield Found("remote" if needs_own_disk else "shared", kind, fields)
    elif kind in IN_MEMORY:
        yield Found("memory", kind, fields)
    elif folder.split("/")[1:2] == ["tmp"] and has_private_tmp(cluster.asked.config):
        yield Found("private", folder, {**fields, "folder": "/tmp"})  # noqa: S108


@check("containers", matters=lambda cluster: cluster.unpacks)
def containers(node: Node, _: Inquiry) -> Iterator[Found]:
    for path, *_more in node.all("half-made"):
        yield Found("half-made", path)


def _seen_image(node: Node, _: Inquiry) -> str:
    if node.one("start")[0] == "ok":
        return "starts"
    return "can be unpacked" if node.one("unpack")[0] == "ok" else ""


@check("image", seen=_seen_image, matters=lambda cluster: bool(cluster.asked.image))
def image(node: Node, cluster: Inquiry) -> Iterator[Found]:
    found, machine = node.one("image")[0], node.one("machine")[0]
    compression, error = node.one("unpack", 2)
    wanted = cluster.asked.image_machine
    if wanted and machine and wanted != machine:
        yield Found("machine", f"it is for {wanted}, and the node is {machine}")
    elif found in ("missing", "other"):
        yield Found(found, str(cluster.asked.image))
    elif node.one("start")[0] not in ("", "ok"):
        yield Found("does-not-start", node.one("start")[0], {"runtime": cluster.runtime})
    elif compression == "missing":
        yield Found("no-unsquashfs", "unsquashfs is not on PATH there")
    elif compression != "ok" and node.has("unpack"):
        yield Found("compression" if compression else "unreadable", compression or error)


def _seen_program(node: Node, cluster: Inquiry) -> str:
    python, module = node.one("python", 2)
    interpreter = python if cluster.asked.needs_python else ""
    if module:
        interpreter = f"{python} with {module}"
    return ", ".join(filter(None, (node.one("program")[0], interpreter)))


@check("program", seen=_seen_program, matters=lambda cluster: bool(cluster.asked.job))
def program(node: Node, cluster: Inquiry) -> Iterator[Found]:
    """Yield what is missing of the launcher's Python and the command's program."""
    asked = cluster.asked
    fields = {"there": "in the image" if asked.image else "there", "module": asked.module}
    for problem, evidence in _missing(node, asked):
        lack = program.problems[problem].what.format(**fields)
        found = "unless-brought" if asked.is_set_up else problem
        yield Found(found, evidence, {"any_of_these": lack, **fields})


def _missing(node: Node, asked: Needs) -> Iterator[tuple[str, str]]:
    """Yield (problem, evidence)."""
    python, module = node.one("python", 2)
    if node.has("python") and asked.needs_python and not python:
        yield "no-python", "looked for python3 and python"
    elif node.has("python") and asked.module and not module:
        yield "no-module", f"looked into {python}" if python else "no Python at all"
    if asked.program and node.has("program") and not node.one("program")[0]:
        yield "no-program", asked.program


def _bridges(driver: str, brand: str, listed: str, compat: str) -> bool:
    """Return True if the image brings a libcuda that works with an older driver.

    The image lists the driver's branch; or it has the library, and NVIDIA supports it for the GPU.
    """
    branch = driver.partition(".")[0]
    return branch in listed.split() or bool(compat and branch in BRIDGED and brand in DATA_CENTRE)


def _driver_matters(cluster: Inquiry) -> bool:
    return bool(cluster.asked.image) and any(node.has("driver") for node in cluster.answered)


@check("driver", seen=lambda node, _: node.one("driver")[0], matters=_driver_matters)
def driver(node: Node, _: Inquiry) -> Iterator[Found]:
    version, newest, brand = node.one("driver", 3)
    wanted, listed = node.one("image-cuda", 2)
    compat = node.one("image-compat")[0]
    have, need = ([*map(int, re.findall(r"\d+", text)[:2])] for text in (newest, wanted))
    if have and need:  # an image may say CUDA_VERSION=none
        cuda = ".".join(map(str, need))
        evidence = f"driver {version} can do CUDA {newest}, the image has CUDA {cuda}"
        if need[0] > have[0]:
            problem = "bridged" if _bridges(version, brand, listed, compat) else "too-old"
            yield Found(problem, evidence)
        elif need > have:
            yield Found("older", evidence)


@check("mounting", matters=lambda cluster: cluster.unpacks)
def mounting(node: Node, cluster: Inquiry) -> Iterator[Found]:
    for name, reason in node.all("cannot-mount"):
        if name == cluster.runtime and not _lacks_namespaces(node, cluster):
            yield Found("impossible", reason)


@check("data", matters=lambda cluster: cluster.asked.has_data_images)
def data(node: Node, cluster: Inquiry) -> Iterator[Found]:
    for name, reason in node.all("cannot-mount-data"):
        if name == cluster.runtime:
            yield Found("impossible", reason)


CHECKS = (
    runtime, namespaces, subuid, scratch, space, disk, containers, mounting, data, image, program,
    driver,
)  # fmt: skip
