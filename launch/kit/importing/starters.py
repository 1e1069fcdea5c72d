"""Read what starts the ranks in a script, srun, torchrun and mpirun, into keys of a job."""

from __future__ import annotations

import os
from typing import Optional

from kit.base.bash_tree import Span
from kit.config import variables
from kit.importing import containers, getopt, hiding, resources, starter_options
from kit.importing.commands import ASSIGNMENT
from kit.importing.containers import GivenContainer
from kit.importing.draft import AtLines, Draft
from kit.importing.getopt import Option, Syntax
from kit.importing.holes import HOLE
from kit.importing.scope import PATH_LIKE, Scope
from kit.slurm import gpu_request

ONE_NODE = "this ran only on the first node; kit starts it on each node"


class Starters(AtLines):
    def __init__(self, draft: Draft, scope: Scope, span: Span) -> None:
        self.draft, self.scope, self.span = draft, scope, span
        self.launcher = ""
        self.per_node: Optional[int] = None
        self.has_srun = False
        self.exports: list[str] = []
        self.names: set[str] = set()  # variables that these, or the lines of a script, use
        self.of_options: set[str] = set()  # variables in which the script puts options

    def set(self, name: str, value: str) -> None:
        if name in variables.OWNED:
            self.scope.keep_own(name, value, exported=True)
        value = self.scope.swept(value)
        has_secret = hiding.is_secret(name, HOLE.sub("", value))  # beside what only the job knows
        if HOLE.search(value) and name not in variables.OWNED and not has_secret:
            self.note_names(value)
            self.exports.append(f"export {name}={self.scope.bash(value)}")
        else:
            self.draft.export(self.span, name, value)

    def note_names(self, text: str) -> None:
        """Note the variables that a text uses."""
        self.names |= self.scope.names(text)

    def _options(
        self, tool: str, words: list[str], syntax: Syntax
    ) -> tuple[list[Option], list[str], bool]:
        """Return a tool's options, the words behind them, and whether these are all options."""
        found, rest = getopt.read(words, syntax)
        is_all = True
        while len(rest) > 1 and (hole := self.scope.only_hole(rest[0])):
            name = rest[1].partition("=")[0]
            is_option = tool == "srun" and name in starter_options.OF_SRUN
            if hole.names.isdisjoint(self.of_options) and not is_option:
                break
            way = "only the running job knows them: see which of them it needs"
            self.decide(f"the options of {tool} in {hole.source}: {way}")
            more, rest = getopt.read(rest[1:], syntax)
            found, is_all = found + more, False
        return found, rest, is_all

    def srun(self, words: list[str]) -> list[str]:
        self.has_srun, self.launcher = True, "srun"
        found, rest, _ = self._options("srun", words, starter_options.SRUN_SYNTAX)
        given: dict[str, str] = {}
        for option in found:
            before = given.get(option.name, "")
            given[option.name] = getopt.value_after(before, option)
        self._count_tasks({name: self.scope.hinted(value) for name, value in given.items()})
        if ":" in rest:
            self.decide("srun starts several programs: kit starts one")
        if given.get("mpi", "").startswith(("pmi", "cray")):
            self.launcher = "mpi"
        for option in found:
            self._srun_option(option)
        self._not_taken("srun", [name for name in given if name in starter_options.SRUN_OF_KIT])
        if container := containers.of_slurm(given):
            self.write_container(container)
        return rest

    def write_container(self, found: GivenContainer) -> None:
        """Write what a container is to be into the draft."""
        self.draft.has_image = True
        for question in found.open_questions:
            self.decide(question)
        for told in found.remarks:
            self.draft.remark(self.span, told)
        self._not_taken(found.runtime, found.not_taken)
        for key, text in found.keys.items():
            is_file = key == "image" and containers.is_file(text)
            path = self.scope.path(text)
            self._text(key, self._named_here(text, path) if is_file else path)
        mounts = self.mount(found.mounts, self.span)
        self._export(found.env)
        if found.workdir:
            self._workdir(self.scope.path(found.workdir), mounts)

    def _not_taken(self, tool: str, names: list[str]) -> None:
        """Name the options for which kit's own way stands."""
        if names:
            shown = ", ".join(f"--{name}" for name in names)
            told = [containers.STAND_FOR[name] for name in names if name in containers.STAND_FOR]
            why = "; ".join(["kit starts the ranks with options of its own", *told])
            self.left_out(f"{shown} of {tool}: {why}")

    def mount(self, texts: list[str], span: Span) -> list[str]:
        """Write mounts into the draft, and return those whose folders are known."""
        found = []
        for text in filter(None, texts):
            known = self._named_here(text, self.scope.path(text))
            mount, shown = containers.mount(known), self.scope.source(known)
            if known in (".", ".:."):
                way = f"the mount `{self.scope.source(text)}`: kit mounts the job's folder itself"
                self.draft.left_out(span, way)
            elif open_names := self.scope.names(known):
                names = ", ".join(f"${name}" for name in sorted(open_names))
                problem = f"the mount `{shown}`: only the job knows {names}"
                self.draft.decide(span, f"{problem}: {containers.of_nodes_disk(shown)}")
            elif HOLE.search(known) or not mount:
                self.draft.decide(span, f"write `{shown}` as SOURCE:/TARGET under `mounts`")
            else:
                found.append(mount)
        mounts = [*self.draft.keys.get("mounts", []), *found]
        if mounts:
            self.draft.keys["mounts"] = list(dict.fromkeys(mounts))
        if containers.on_host(str(self.scope.values.get("HOME", "$HOME")), mounts):
            self.draft.take_back(containers.WITHOUT_HOME)
        return found

    def _named_here(self, text: str, path: str) -> str:
        """Return a path that a text names from the folder in which the script is: ./a.sqsh."""
        first = self.scope.holes_of(text[:1])
        is_relative = not first and not path.startswith(("/", "~", "$"))
        is_of_here = is_relative or any("PWD" in hole.names for hole in first)
        if is_of_here and not self.draft.is_folder_known:
            way = "kit import does not know the script's folder there: write the whole path"
            self.decide(f"`{self.scope.source(text)}`: {way}")
        if not is_relative or self.draft.folder == ".":
            return path
        name, *rest = path.split(":")
        inside = os.path.normpath(os.path.join(self.draft.folder, name))
        begin = "" if inside.startswith(("/", "~", "$")) else "./"
        return ":".join([begin + inside, *rest])

    def _text(self, key: str, text: str) -> None:
        """Write a key whose value is one text."""
        if HOLE.search(text):
            self.decide(f"write the `{key}` out, without variables: {self.scope.source(text)}")
        elif key == "image" and (found := containers.reference(text)):
            way = f"`kit build {found}` makes a file of it; then write its name as `image`"
            self.decide(f"the image is in a registry: {way}")
        elif text:
            self.draft.keys[key] = text

    def _workdir(self, target: str, mounts: list[str]) -> None:
        """Name the folder of the host that a mount shows as the working directory."""
        if target == ".":
            self.left_out("the program starts in the job file's folder")
        elif not HOLE.search(target) and (found := containers.on_host(target, mounts)):
            self.draft.keys["workdir"] = found
            if found != target:
                way = f"by its path on the host, which is not {target}"
                told = f"the program starts in the same folder, `workdir: {found}`, {way}"
                self.draft.remark(self.span, told)
        else:
            way = f"write `workdir`{containers.in_image(self.scope.source(target))}"
            self.decide(f"the program started in this folder of the container: {way}")

    def _count_tasks(self, given: dict[str, str]) -> None:
        nodes, tasks = (gpu_request.number(given, name, 0) for name in ("nodes", "ntasks"))
        if nodes and nodes != self.draft.nodes:
            self.decide(f"this srun is for {nodes} of {self.draft.nodes} nodes; kit starts on all")
        if per_node := gpu_request.number(given, "ntasks-per-node", 0):
            self.draft.tasks = per_node
        elif tasks:
            self.draft.tasks = max(1, tasks // (nodes or self.draft.nodes))
            if tasks % (nodes or self.draft.nodes):
                self.decide(f"{tasks} tasks are not the same number on each node")
        for name in ("nodes", "ntasks", "ntasks-per-node"):
            if not given.get(name, "0").isdecimal():
                self.decide(f"write what --{name} is: `nodes`, `processes_per_node`")

    def _export(self, words: list[str]) -> None:
        for word in words:
            if found := ASSIGNMENT.match(word):
                self.set(found[1], found[2])
            elif word in ("HOME", "USER") or PATH_LIKE.fullmatch(word):
                self.left_out(f"{word} is each node's own, as `host_setup` leaves it")
            elif word not in ("", "ALL", "NONE", "NIL"):
                name = word.partition("=")[0]  # no variable's; what is behind it may be a secret
                self.draft.export(self.span, self.scope.source(name), None)

    def _srun_option(self, option: Option) -> None:
        name, value = option.name, self.scope.hinted(option.value or "")
        shown = self.scope.source(value)
        if name == "export":
            self._export(value.split(","))
        elif name == "chdir":
            self._text("workdir", self.scope.path(option.value or ""))
        elif name in ("nodelist", "exclude"):
            self.decide(f"kit starts on all nodes of the job, and not on those of --{name}")
        elif name == "multi-prog":
            self.decide("srun --multi-prog starts several programs: kit starts one")
        elif name in ("cpus-per-task", "gres", "gpus", "gpus-per-node", "gpus-per-task"):
            resources.of_step(self.draft, self.span, name, value, f"--{name}={shown}")
        elif way := starter_options.of_site(name, value):
            self.decide(f"--{name}={shown}: {way}")
        elif name == "time":
            self.decide(f"--time={shown} ended this step: `time` is that of the whole job")
        elif name in starter_options.SRUN_OF_JOB:
            if self.draft.slurm.get(name) != value:
                way = "under `slurm` the whole job would have it"
                self.decide(f"--{name}={shown} was for this step: {way}")
        elif name not in starter_options.SRUN_READ | starter_options.SRUN_OF_KIT:
            self.decide(f"srun's option --{name}: kit has none like it")

    def torchrun(self, words: list[str]) -> list[str]:
        is_alone, self.launcher = not self.launcher, "torchrun"
        found, rest, is_all = self._options("torchrun", words, starter_options.TORCHRUN_SYNTAX)
        given = {option.name.replace("_", "-"): option.value or "" for option in found}
        if is_alone and is_all and self.draft.nodes > 1 and "nnodes" not in given:
            self.decide(ONE_NODE)
        of_kit = [name for name in given if name in starter_options.TORCHRUN_OF_KIT]
        for name in given:
            if name not in {*starter_options.TORCHRUN_READ, *of_kit}:
                self.decide(f"torchrun's option --{name}: kit has none like it")
        self._not_taken("torchrun", of_kit)
        processes = self.scope.hinted(given.get("nproc-per-node", ""))
        if processes.isdecimal():
            self.per_node = int(processes)
        elif processes and self._differs_from_gpus(processes):
            self.decide("write the ranks of each node: `processes_per_node`")
        elif not processes and is_all:
            self.per_node = 1
        self._nodes_of_torchrun(self.scope.hinted(given.get("nnodes", "")))
        if given.get("max-restarts", "0") not in ("0", ""):
            self._text("max_restarts", self.scope.hinted(given["max-restarts"]))
        if rest and "no-python" not in given:  # torchrun starts its program by Python
            rest = ["python", *(["-m"] if "module" in given else []), *rest]
        if self.has_srun and self.draft.tasks > 1:
            self.decide(f"srun starts torchrun {self.draft.tasks} times on each node, and kit once")
        return rest

    def _differs_from_gpus(self, processes: str) -> bool:
        """Return whether a number of ranks may be another than that of the GPUs of a node."""
        is_argument = any(not name.isidentifier() for name in self.scope.names(processes))
        return is_argument or processes == "cpu" or "gpus_per_node" not in self.draft.keys

    def _nodes_of_torchrun(self, nodes: str) -> None:
        if nodes.isdecimal() and int(nodes) != self.draft.nodes:
            if self.draft.has_header:
                self.decide(f"torchrun expects {nodes} nodes, and the job has {self.draft.nodes}")
            else:  # a line to be typed on each machine
                self.draft.keys["nodes"] = nodes
        elif ":" in nodes:
            way = "`nodes: 2-4` takes as many as are free"
            self.decide(f"torchrun may run on {nodes} nodes: {way}")

    def mpi(self, words: list[str]) -> list[str]:
        self.launcher = "mpi"
        total = per_node = None
        not_taken = []
        while words and words[0].startswith("-"):
            name, equals, value = words[0].lstrip("-").partition("=")
            count = 0 if equals else starter_options.MPI_VALUES.get(name, 0)
            taken, words = words[1 : 1 + count], words[1 + count :]
            text = self.scope.hinted(value if equals else taken[0] if taken else "")
            if name in ("np", "n"):
                total = text
            elif name in ("npernode", "ppn", "N", "perhost", "pernode"):
                per_node = text or "1"
            elif name == "x":
                self._export([text])
            elif name in ("genv", "env") and len(taken) == 2:
                self.set(taken[0], taken[1])
            else:
                not_taken.append(name)
                if not equals and name not in starter_options.MPI_KNOWN:
                    self.decide(f"mpirun's option --{name}: see whether a value is behind it")
        if ":" in words:
            self.decide("mpirun starts several programs: kit starts one")
        self._not_taken("mpirun", not_taken)
        if per_node and per_node.isdecimal():
            self.per_node = int(per_node)
        elif total and total.isdecimal() and int(total) % self.draft.nodes == 0:
            self.per_node = int(total) // self.draft.nodes
        elif total:
            self.decide("write the ranks of each node: `processes_per_node`")
        return words
