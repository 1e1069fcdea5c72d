"""Turn the command that starts the ranks into keys of a job: srun, torchrun, mpirun, containers."""

from __future__ import annotations

import os
import re
from typing import Callable, NamedTuple, Optional

from kit.config import sbatch_options, variables
from kit.importing import commands, containers, options
from kit.importing.commands import ASSIGNMENT, MPI, PYTHONS, SHELLS, WRAPPERS
from kit.importing.containers import Container
from kit.importing.draft import Draft
from kit.importing.expansion import HOLE, Scope
from kit.importing.options import Option, Syntax
from kit.importing.shell import Span

_SRUN = Syntax(
    {**sbatch_options.LETTERS, "l": "label", "u": "unbuffered", "K": "kill-on-bad-exit"}
    | {"E": "preserve-env", "X": "disable-status", "r": "relative", "T": "threads"},
    {*sbatch_options.FLAGS, "label", "unbuffered", "kill-on-bad-exit", "multi-prog", "overlap"}
    | {"pty", "preserve-env", "disable-status", "quit-on-interrupt", "exact", "interactive"}
    | {"container-writable", "container-readonly", "container-mount-home", "container-entrypoint"}
    | {"no-container-mount-home", "no-container-entrypoint", "no-container-remap-root"} - {"wait"},
)
# Options of srun for which kit's own step stands.
_SRUN_OF_KIT = set(
    """
    label unbuffered kill-on-bad-exit wait output error open-mode cpu-bind cpu_bind mem-bind
    distribution jobid job-name overlap exact exclusive hint verbose quiet export container-name
    container-writable no-container-mount-home container-mount-home container-entrypoint
    no-container-entrypoint no-container-remap-root accel-bind gpus gpus-per-node gres cpus-per-task
    disable-status preserve-env quit-on-interrupt threads-per-core input nodes ntasks
    ntasks-per-node mem account partition qos time gpu-bind network
    """.split()
)
_TORCHRUN = Syntax(
    {"m": "module"},
    "standalone no-python no_python run-path run_path module use-env use_env".split(),
)
_TORCHRUN_OF_KIT = re.compile(
    r"(nnodes|node-rank|master-(addr|port)|rdzv-.*|local-addr|nproc-per-node|log-dir|redirects|tee"
    r"|role|start-method|monitor-interval|standalone|use-env|module|no-python|run-path"
    r"|max-restarts|local-ranks-filter|logs-specs|numa-binding)\Z"
)
_MPI_VALUES = {
    **dict.fromkeys("np n npernode ppn N H host hostfile machinefile map-by bind-to".split(), 1),
    **dict.fromkeys("rank-by wdir x genv envlist report-bindings-to display".split(), 1),
    **dict.fromkeys("mca pmixmca prtemca genv env".split(), 2),
}


class Tools(NamedTuple):
    """What a launch asks of the reader of the statements around it."""

    # Reads the text of `bash -c` behind some mounts; returns the words of the program in it, and
    # None where there is more than that.
    inner: Callable[[str, Span, Optional[list[str]]], Optional[list[str]]]


class Launch:
    def __init__(
        self, draft: Draft, scope: Scope, tools: Tools, tasks: Optional[int], span: Span
    ) -> None:
        self.draft, self.scope, self.tools, self.span = draft, scope, tools, span
        self.tasks = tasks  # on each node
        self.launcher = ""
        self.per_node: Optional[int] = None
        self.has_srun = False
        self.lines: list[str] = []  # of bash, in the place of a command
        self.exports: list[str] = []
        self.names: set[str] = set()  # variables that these use

    def read(self, words: list[str]) -> None:
        """Put a command into the draft."""
        self.draft.carried(self.span, "command")
        rest: Optional[list[str]] = words
        while rest:
            words, rest = rest, self._peel(rest)
        if rest is None:
            self._finish(words)

    def _peel(self, words: list[str]) -> Optional[list[str]]:
        """Return the words behind one tool; None where the program begins; [] where all is read."""
        name, rest = os.path.basename(words[0]), words[1:]
        if name in WRAPPERS:
            return rest
        if name == "env" and rest and ASSIGNMENT.match(rest[0]):
            return rest
        if found := ASSIGNMENT.match(words[0]):
            self.set(found[1], found[2])
            return rest
        if name == "srun":
            return self._srun(rest)
        if name in MPI:
            return self._mpi(rest)
        if name == "torchrun":
            return self._torchrun(rest)
        is_python = bool(PYTHONS.match(name))
        module = next((i for i, word in enumerate(rest[:3]) if word == "-m"), None)
        if is_python and module is not None and len(rest) > module + 1:
            if rest[module + 1] in ("torch.distributed.run", "torch.distributed.launch"):
                return self._torchrun(rest[module + 2 :])
            if rest[module + 1] == "accelerate.commands.launch":
                return self._on_each_node(words)
        if commands.is_node_starter(name, rest):
            return self._on_each_node(words)
        if name in containers.READERS:
            found = containers.READERS[name](rest)
            self._contain(found)
            return found.program
        if name in SHELLS and (text := _text_of(rest)) is not None:
            return self._shell(text, words)
        return None

    def set(self, name: str, value: str) -> None:
        """Set a variable of the program."""
        if name in variables.OWNED:
            self.draft.left_out(self.span, f"{name}: kit sets it in every rank")
        elif HOLE.search(value):
            self.names |= {used for hole in self.scope.behind(value) for used in hole.names}
            self.exports.append(f"export {name}={self.scope.bash(value)}")
        else:
            self.draft.env[name] = value

    def decide(self, reason: str) -> None:
        self.draft.decide(self.span, reason)

    def leave_out(self, reason: str) -> None:
        self.draft.left_out(self.span, reason)

    # ------------------------------------------------------------ launchers

    def _srun(self, words: list[str]) -> list[str]:
        self.has_srun, self.launcher = True, "srun"
        found, rest = options.read(words, _SRUN)
        given = {option.name: self.scope.hinted(option.value or "") for option in found}
        self._count_tasks(given)
        if ":" in rest:
            self.decide("srun starts several programs: kit starts one")
        if given.get("mpi", "").startswith("pmi"):
            self.launcher = "mpi"
        for option in found:
            self._srun_option(option)
        if container := containers.of_srun(given):
            self._contain(container)
        return rest

    def _contain(self, found: Container) -> None:
        """Write what a container is to be into the draft."""
        keys, hinted = self.draft.keys, self.scope.hinted
        for question in found.open_questions:
            self.decide(question)
        self._image(hinted(found.image))
        mounts = [containers.mount(hinted(each)) for each in found.mounts if each]
        if not all(mounts) or any(HOLE.search(each) for each in mounts):
            self.decide("write this mount as SOURCE:/TARGET under `mounts`")
        if mounts := [each for each in mounts if each and not HOLE.search(each)]:
            keys["mounts"] = [*keys.get("mounts", []), *mounts]
        for word in found.env:
            if assigned := ASSIGNMENT.match(word):
                self.set(assigned[1], assigned[2])
        if found.is_root:
            keys["remap_root"] = "true"
        if found.workdir:
            self._workdir(hinted(found.workdir), mounts)

    def _image(self, image: str) -> None:
        if not image:
            return
        if HOLE.search(image):
            self.decide("write the `image` out, without variables")
        elif found := containers.reference(image):
            way = f"`kit build {found}` makes a file of it; then write its name as `image`"
            self.decide(f"the image is in a registry: {way}")
        else:
            self.draft.keys["image"] = image
        self.draft.has_image = True

    def _workdir(self, target: str, mounts: list[str]) -> None:
        """Name the folder of the host that a mount shows as the working directory."""
        if found := containers.on_host(target, mounts):
            self.draft.keys["workdir"] = found
            return
        self.decide("the program started in this folder of the container: write `workdir`")

    def _count_tasks(self, given: dict[str, str]) -> None:
        def number(name: str) -> Optional[int]:
            return int(given[name]) if given.get(name, "").isdecimal() else None

        nodes, tasks = number("nodes"), number("ntasks")
        if nodes and nodes != self.draft.nodes:
            self.decide(f"this srun is for {nodes} of {self.draft.nodes} nodes; kit starts on all")
        if per_node := number("ntasks-per-node"):
            self.tasks = per_node
        elif tasks:
            self.tasks = max(1, tasks // (nodes or self.draft.nodes))
            if tasks % (nodes or self.draft.nodes):
                self.decide(f"{tasks} tasks are not the same number on each node")
        for name in ("nodes", "ntasks", "ntasks-per-node"):
            if name in given and number(name) is None:
                self.decide(f"write what --{name} is: `nodes`, `processes_per_node`")

    def _srun_option(self, option: Option) -> None:
        name, value = option.name, self.scope.hinted(option.value or "")
        if name == "export":
            for word in value.split(","):
                if found := ASSIGNMENT.match(word):
                    self.set(found[1], found[2])
                elif word not in ("", "ALL", "NONE", "NIL"):
                    self.draft.inherit.append(word)
        elif name == "cpus-per-task" and "cpus-per-task" not in self.draft.slurm:
            self.draft.slurm[name] = value
        elif name in ("gres", "gpus-per-node") and "gpus_per_node" not in self.draft.keys:
            if (count := value.split(":")[-1]).isdecimal():
                self.draft.keys["gpus_per_node"] = count
        elif name == "chdir":
            self.draft.keys["workdir"] = value
        elif name == "gpus-per-task" and (self.tasks or 1) > 1:
            self.decide("each rank saw one GPU; now it sees all and takes its LOCAL_RANK's")
        elif name in ("nodelist", "exclude"):
            self.decide(f"kit starts on all nodes of the job, and not on those of --{name}")
        elif name == "multi-prog":
            self.decide("srun --multi-prog starts several programs: kit starts one")
        elif not (
            name in _SRUN_OF_KIT or name in sbatch_options.PYXIS or name in ("mpi", "chdir")
        ):
            self.decide(f"srun's option --{name}: kit has none like it")

    def _torchrun(self, words: list[str]) -> list[str]:
        self.launcher = "torchrun"
        found, rest = options.read(words, _TORCHRUN)
        given = {option.name.replace("_", "-"): option.value or "" for option in found}
        for name in given:
            if not _TORCHRUN_OF_KIT.match(name):
                self.decide(f"torchrun's option --{name}: kit has none like it")
        processes = self.scope.hinted(given.get("nproc-per-node", ""))
        if processes.isdecimal():
            self.per_node = int(processes)
        elif HOLE.search(processes) and "gpus_per_node" not in self.draft.keys:
            self.decide("write the ranks of each node: `processes_per_node`")
        elif not processes:
            self.per_node = 1
        nodes = self.scope.hinted(given.get("nnodes", ""))
        if nodes.isdecimal() and int(nodes) != self.draft.nodes:
            self.decide(f"torchrun expects {nodes} nodes, and the job has {self.draft.nodes}")
        elif ":" in nodes:
            self.decide(f"torchrun may run on {nodes} nodes: `nodes: 2-4` takes as many as are free")
        if given.get("max-restarts", "0") not in ("0", ""):
            self.draft.keys["max_restarts"] = self.scope.hinted(given["max-restarts"])
        if "module" in given:
            rest = ["python", "-m", *rest]
        if self.has_srun and (self.tasks or 1) > 1:
            self.decide(f"srun starts torchrun {self.tasks} times on each node, and kit once")
        return rest

    def _mpi(self, words: list[str]) -> list[str]:
        self.launcher = "mpi"
        total = per_node = None
        while words and words[0].startswith("-"):
            name, equals, value = words[0].lstrip("-").partition("=")
            count = 0 if equals else _MPI_VALUES.get(name, 0)
            taken, words = words[1 : 1 + count], words[1 + count :]
            text = self.scope.hinted(value if equals else taken[0] if taken else "")
            if name in ("np", "n"):
                total = text
            elif name in ("npernode", "ppn", "N"):
                per_node = text
            elif name == "x" and (found := ASSIGNMENT.match(text)):
                self.set(found[1], found[2])
        if per_node and per_node.isdecimal():
            self.per_node = int(per_node)
        elif total and total.isdecimal() and int(total) % self.draft.nodes == 0:
            self.per_node = int(total) // self.draft.nodes
        elif total:
            self.decide("write the ranks of each node: `processes_per_node`")
        return words

    def _on_each_node(self, words: list[str]) -> list[str]:
        """Keep a launcher of the framework's own, which starts the ranks of each node."""
        if not self.has_srun and self.draft.nodes > 1:
            way = "kit starts it on each node: its options must say which node it is"
            self.decide(f"this ran on the first node alone; {way} ($NODE_RANK, $MASTER_ADDR)")
        if os.path.basename(words[0]) == "deepspeed" and "hostfile" in " ".join(words):
            self.decide("no --hostfile is needed: `command: PROGRAM` with `launcher: torchrun`")
        self.launcher = "spawn"
        self._script(words)
        self._write()
        return []

    def _shell(self, text: str, words: list[str]) -> Optional[list[str]]:
        """Read the text of `bash -c`; what is more than a program stays bash."""
        mounts = self.draft.keys.get("mounts", []) if self.draft.has_image else None
        found = self.tools.inner(text, self.span, mounts)
        if found is not None:
            return found
        self.names |= {name for hole in self.scope.behind(text) for name in hole.names}
        sources = iter([hole.source for hole in self.scope.behind(text)])
        self.lines = HOLE.sub(lambda _: next(sources), text).strip("\n").split("\n")
        if "torchrun" in text or "torch.distributed" in text:
            self.decide("torchrun is among other commands: see which ranks kit should start")
        self._write()
        return []

    # ------------------------------------------------------------ the program

    def _finish(self, words: list[str]) -> None:
        """Write the program, as a command or as a script."""
        words = [self._here(word) for word in words]
        if [hole.source for hole in self.scope.behind(words[-1])] in (["$@"], ["${@}"]):
            self.leave_out("$@: kit submit job.yaml -- ARGUMENTS adds them to the command")
            words = words[:-1]
        if not words:
            self.decide("write the program: `command: train.py`")
        elif any(HOLE.search(word) for word in words):
            self._script(words)
        else:
            name = os.path.basename(words[0])
            is_script = len(words) > 1 and words[1].endswith(".py")
            self.draft.keys["command"] = (
                words[1:] if name in ("python", "python3") and is_script else words
            )
        self._write()

    def _here(self, word: str) -> str:
        """Return a path of the folder where the job starts as a relative one."""
        holes = self.scope.behind(word)
        if holes and HOLE.match(word) and holes[0].names <= {"PWD", "SLURM_SUBMIT_DIR"}:
            if holes[0].hint == "." and word[1:2] == "/":
                return word[2:] if "/" in word[2:] or word.endswith(".py") else f".{word[1:]}"
        return word

    def _script(self, words: list[str]) -> None:
        holes = [hole for word in words for hole in self.scope.behind(word)]
        if any(re.match(r"[0-9@*#]", name) for hole in holes for name in hole.names):
            way = "write them out, or add them behind --: kit submit job.yaml -- ARGUMENTS"
            self.decide(f"the command has arguments of the batch script: {way}")
        self.names |= {name for hole in holes for name in hole.names}
        start = ["python"] if words[0].endswith(".py") and "/" not in words[0][:1] else []
        line = " ".join(self.scope.bash(word) for word in [*start, *words])
        self.lines = [line]

    def _write(self) -> None:
        keys = self.draft.keys
        if not self.launcher:
            self.launcher = "spawn"
            if self.draft.nodes > 1:
                self.decide("this ran on the first node alone; kit starts it on each node")
        keys["launcher"] = self.launcher
        count = self.per_node
        if count is None and self.launcher in ("srun", "mpi"):
            count = self.tasks or 1
        if count is not None:
            keys["processes_per_node"] = str(count)
        cpus = self.draft.slurm.get("cpus-per-task", "")
        is_for_node = self.launcher in ("torchrun", "spawn")
        if is_for_node and cpus.isdecimal() and (self.tasks or 1) > 1:
            self.draft.slurm["cpus-per-task"] = str(int(cpus) * (self.tasks or 1))
        signal = self.draft.slurm.get("signal")
        if signal and self.launcher == "torchrun":
            del self.draft.slurm["signal"]
            way = "`on_preempt: checkpoint` asks the ranks for a checkpoint in time"
            self.decide(f"torchrun dies of the signal {signal}: {way}")


def _text_of(words: list[str]) -> Optional[str]:
    """Return the text behind -c among the options of a shell; None where it runs a file."""
    for index, word in enumerate(words):
        if not word.startswith("-"):
            return None
        if not word.startswith("--") and "c" in word:
            return words[index + 1] if len(words) == index + 2 else None
    return None
