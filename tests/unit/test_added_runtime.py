"""A runtime is one file: every command knows one that is added to the folder, and no other file names one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from kit.base import assets
from kit.base.errors import Problems
from kit.cluster import probe
from kit.cluster.doctor import container_checks, local_checks
from kit.cluster.doctor.inquiry import Inquiry, Needs, Node
from kit.cluster.init import choices
from kit.cluster.init.survey import Site
from kit.cluster.probe import Machine
from kit.config import plugins, profiles
from kit.config.job import Job
from kit.plan import runtimes

from samples import ROOT

ADDED = """\
# runtimes/shifter.sh - a runtime that no part of kit has heard of.
# images: .tar .sqsh
# tool: shifter
# auto: 0
# user-namespaces: yes
# own-disk: yes
# containers-variable: SHIFTER_AT
# unpacks: yes

runtime::folders() { printf '%s\\n' "${KIT_SCRATCH}/of-shifter"; }
runtime::works() { echo 'its daemon is down' >&2 && false; }
"""
CONTAINER = "kit-0123456789abcdef"


@pytest.fixture
def added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with one runtime more; its tool is the first on PATH."""
    shutil.copytree(ROOT / "launch/scripts", tmp_path / "launch/scripts")
    (tmp_path / "launch/scripts/runtimes/shifter.sh").write_text(ADDED)
    monkeypatch.setattr(assets, "folder", lambda name: tmp_path / name)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/shifter").write_text("#!/bin/sh\necho shifter version 7.1\n")
    (tmp_path / "bin/shifter").chmod(0o755)
    (tmp_path / "of-shifter" / CONTAINER).mkdir(parents=True)
    return tmp_path


def chosen(image: Path) -> tuple[str, str]:
    problems = Problems()
    image.write_text("x")
    found, why = runtimes.runtime(Job(image=str(image)), profiles.Cluster("generic"), problems)
    problems.raise_if_any()
    assert found
    return found.name, why


def test_auto_takes_it(added: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(added / "bin"))
    assert chosen(added / "x.tar") == ("shifter", "the image is a .tar file")
    assert chosen(added / "x.sqsh") == ("shifter", "shifter is installed here")


def test_init_takes_it(added: Path) -> None:
    site = Site("hpc", Machine("login"), node=Machine("node1", {"tool": [["apptainer", "1.4"], ["shifter", "7.1"]]}))
    assert choices.runtime(site)[:2] == ("shifter", "shifter on node1; also apptainer")


def test_doctor_looks_for_it(added: Path) -> None:
    def node(name: str, *tools: str) -> Node:
        made = Node(name)
        made.said.update({"ready": [[""]], "tool": [[tool, "1.0"] for tool in tools]})
        return made

    asked: dict[str, Any] = {"runtime": "shifter"}
    cluster = Inquiry(Needs(**asked), [node("node1", "shifter"), node("node2", "enroot")])
    found = [list(container_checks.runtime.judge(item, cluster)) for item in cluster.nodes]
    assert found[0] == []
    assert [(item.problem, item.evidence) for item in found[1]] == [("missing", "shifter is not on PATH there")]
    assert container_checks.namespaces.matters(cluster) and cluster.unpacks


def test_doctor_asks_its_file_on_the_node(added: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{added}/bin:{os.environ['PATH']}")
    one = local_checks.examine(Needs(runtime="shifter", scratch=str(added), folder=str(added)))
    (node,) = one.nodes
    assert node.tool("shifter") == "7.1" and ["shifter", "its daemon is down"] in node.all("stopped")
    assert [item.evidence for item in container_checks.containers.judge(node, one)] == [f"{added}/of-shifter/{CONTAINER}"]
    assert container_checks._place(node, one)[0] == f"{added}/of-shifter"
    node.said["containers"] = [[f"{added}/of-shifter", str(added), "yes", "nfs4", "9", "9", "9", "1", "1", "shifter"]]
    (found,) = container_checks.disk.judge(node, one)
    assert found.problem == "remote" and {"runtime": "shifter", "variable": "SHIFTER_AT"}.items() <= found.fields.items()


def test_its_containers_are_tidied(added: Path) -> None:
    container = added / "of-shifter" / CONTAINER
    (container / ".kit-complete").write_text("image\n")
    old = time.time() - 9 * 86400
    os.utime(container / ".kit-complete", (old, old))

    def collect(*words: str) -> str:
        command = ["bash", "-c", assets.script("collect.sh"), "collect.sh", *words]
        return subprocess.run(command, env={**os.environ, "SLURMD_NODENAME": "n1"}, capture_output=True, text=True, check=True).stdout

    assert collect("list", "7", str(added)).endswith(f"\t{container}\n")
    collect("remove", "7", str(added), f"n1:{container}")
    assert not container.exists()


def test_the_tools_that_are_looked_for_are_those_of_the_files(added: Path) -> None:
    assert plugins.tools() == ["shifter", "enroot", "apptainer", "singularity", "docker", "podman"]
    assert "tools=shifter enroot apptainer singularity docker podman" in probe.command({})


# Files that may name a runtime, and why. All others read the facts at the head of its file, or ask its functions.
MAY_NAME = {
    "launch/scripts/runtimes/": "a runtime's own file",
    "launch/scripts/lib/enroot.sh": "what the files of two runtimes share",
    "launch/scripts/lib/mounted_image.sh": "what the files of two runtimes share",
    "launch/scripts/lib/data_images.sh": "mounts with a program of Enroot's",
    "launch/scripts/lib/no_entrypoint.sh": "what the files of two runtimes share",
    "launch/scripts/lib/oci.sh": "what the files of two runtimes share",
    "launch/scripts/lib/sif.sh": "what the files of two runtimes share",
    "launch/scripts/lib/fabric.sh": "the names of the networks of an engine",
    "launch/scripts/lib/environment.sh": "the variables of other tools that their users set",
    "launch/scripts/lib/container.sh": "undoes, inside, what a hook of Enroot's does there",
    "launch/kit/images/": "builds images by engines, each of them one file there",
    "launch/kit/cli/build_command.py": "the engines of `kit build`",
    "launch/kit/cli/completion.py": "the engines of `kit build`",
    "launch/kit/registry/": "reads images and logins in the formats that are called after Docker",
    "launch/kit/files/dockerignore.py": "a format that is called after Docker",
    "launch/kit/diagnose/why/": "knows the errors that other programs print",
    "launch/kit/plan/key_files.py": "the files in which other programs keep keys",
    "launch/kit/config/other_tools.py": "the words of other tools that users type by mistake",
    "launch/kit/importing/": "reads the commands of other tools in batch scripts",
    "launch/kit/config/plugins.py": "the names of other tools, and its example of a fact",
    "launch/kit/config/inherit.py": "the variables of other tools that describe this machine",
    "launch/kit/config/sbatch_options.py": "the options that a plug-in adds to srun",
    "launch/kit/config/job.py": "the meanings of keys, which docs/reference.md shows",
    "launch/kit/config/container_keys.py": "the meanings of keys, which docs/reference.md shows",
    "launch/kit/config/mount_list.py": "says of a word that it is Docker's",
    "launch/kit/config/suggest.py": "docker:// is how images of registries are written",
    "launch/kit/plan/mounting.py": "advises one whose mounts take every path",
    "launch/kit/plan/sbatch.py": "the options that a plug-in adds to srun",
    "launch/kit/cluster/probe.py": "docker0 is an interface",
    "launch/scripts/lib/network.sh": "docker0 is an interface",
    "launch/kit/plan/this_machine.py": "takes kit build's image of an engine for a rehearsal",
    "launch/kit/plan/runtimes.py": "docker:// is how images of registries are written",
    "launch/kit/remote/image_copy.py": "shows how a file is made of a sandbox folder",
    "launch/kit/base/redact.py": "says whose token it found",
}


def test_no_other_file_names_a_runtime() -> None:
    names = {*plugins.names("runtimes"), *plugins.tools()} - {"none"}
    named = re.compile(rf"\b({'|'.join(sorted(names))})(?!file|ignore)", re.IGNORECASE)
    files = [path for folder in ("launch/kit", "launch/scripts") for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".sh", ".yaml")]
    found = []
    for path in files:
        name = str(path.relative_to(ROOT))
        if not any(name.startswith(allowed) for allowed in MAY_NAME):
            lines = path.read_text().splitlines()
            found += [f"{name}:{number}: {line}" for number, line in enumerate(lines, 1) if named.search(line)]
    assert found == []
