"""Read what starts the ranks in a script, srun, torchrun and mpirun, into keys of a job."""

from __future__ import annotations

import re
from typing import Optional

from kit.base.bash_tree import Span
from kit.importing import containers, getopt, resources, starter_options
from kit.importing.container_keys import ContainerKeys
from kit.importing.draft import Draft
from kit.importing.getopt import Option, Syntax
from kit.importing.holes import HOLE
from kit.importing.scope import Scope
from kit.slurm import gpu_request

ONE_NODE = "this ran only on the first node; kit starts it on each node"


class Starters(ContainerKeys):
    def __init__(self, draft: Draft, scope: Scope, span: Span) -> None:
        super().__init__(draft, scope, span)
        self.launcher = ""
        self.per_node: Optional[int] = None
        self.has_srun = False
        self.of_options: set[str] = set()  # variables in which the script puts options

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

    def _with_live_numbers(self, text: str) -> str:
        """Return a text with what the header tells, but for numbers, which the job may change."""

        def fill(found: re.Match[str]) -> str:
            (hole,) = self.scope.holes_of(found.group())
            is_number = bool(hole.names) and all(name.startswith("SLURM") for name in hole.names)
            known = self.scope.hinted(found.group())
            return found.group() if is_number and known.isdecimal() else known

        return HOLE.sub(fill, text)

    def _srun_option(self, option: Option) -> None:
        name, value = option.name, self.scope.hinted(option.value or "")
        shown = self.scope.source(value)
        if name == "export":
            self._export(self._with_live_numbers(option.value or "").split(","))
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
        elif HOLE.search(processes):
            way = f"kit starts one for each GPU of a node ({self.draft.keys['gpus_per_node']})"
            number = self.scope.source(processes)
            told = f"{number} is a number of ranks that only the job knows: {way}"
            self.draft.remark(self.span, told)
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
                self._export([self._with_live_numbers(value if equals else "".join(taken))])
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
