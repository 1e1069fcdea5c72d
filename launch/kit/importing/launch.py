"""Turn the command that starts the ranks into keys of a job: srun, torchrun, mpirun, containers."""

from __future__ import annotations

import os
import re
import shutil
from typing import Optional

from kit.base.bash_tree import Span
from kit.config import rank_starters
from kit.config.rank_starters import MPI, TORCHRUN
from kit.importing import commands, containers, header, inner_text, resources, starter_options
from kit.importing.commands import ASSIGNMENT, BASH_AND_SH, WRAPPERS
from kit.importing.draft import Draft
from kit.importing.holes import HOLE
from kit.importing.inner_text import ALL, InnerText, TextReader
from kit.importing.scope import COMPUTED, DIFFERS, Scope
from kit.importing.starters import ONE_NODE

_OF_PYTHON = {"conda", "mamba", "micromamba", "uv", "poetry", "pipenv", "pixi"}
_USE_ENV = {"--use-env", "--use_env"}
_LOCAL_RANK = "have it read LOCAL_RANK, or see docs/your-line.md"
_STARTER = re.compile(
    r"\b(srun|mpirun|mpiexec|torchrun|accelerate|deepspeed|torch\.distributed|ft_launcher"
    r"|dlrover-run)\b"
)


class Launch(InnerText):
    def __init__(self, draft: Draft, scope: Scope, inner: TextReader, span: Span) -> None:
        super().__init__(draft, scope, inner, span)
        self.written: set[str] = set()  # files that lines before the program write

    def read(self, words: list[str]) -> None:
        """Put a command into the draft."""
        self.carried("command")
        rest: Optional[list[str]] = words
        while rest:
            words, rest = rest, self._peel(rest)
        if rest is None:
            self._finish(words)
        elif self.is_kept:
            self._write()

    def _peel(self, words: list[str]) -> Optional[list[str]]:
        """Return the words behind one tool; None where the program begins; [] where all is read."""
        name, rest = os.path.basename(words[0]), words[1:]
        if name in WRAPPERS or (name == "env" and rest and ASSIGNMENT.match(rest[0])):
            return rest
        if found := ASSIGNMENT.match(words[0]):
            self.set(found[1], found[2])
            return rest
        if index := commands.starter_inside(words):
            started = " ".join(rank_starters.beginning(words[index:])[0])
            way = ": activate its environment in `host_setup`" if name in _OF_PYTHON else ""
            self.decide(f"{name} was around {started}, which kit starts itself{way}")
            return words[index:]
        if name == "srun":
            return self.srun(rest)
        if name in MPI:
            return self.mpi(rest)
        start, behind = rank_starters.beginning(words)
        if start in TORCHRUN:
            self._take_python(os.path.dirname(words[0]))
            if start[-1] == "torch.distributed.launch" and not _USE_ENV & {*behind}:
                self.decide(f"{start[-1]} gave the program --local-rank: {_LOCAL_RANK}")
            return self.torchrun(behind)
        is_ray = start in rank_starters.RAY and "--" in behind
        if is_ray or start in rank_starters.OF_NODE:
            return self._ray(start, behind) if is_ray else self._on_each_node(words)
        if name in containers.READERS:
            container = containers.READERS[name](rest)
            self.write_container(container)
            if not container.program:
                self._write()
            return container.program
        if name in BASH_AND_SH and (text := inner_text.text_of(rest)) is not None:
            return self.read_text(text)
        return None

    def _take_python(self, folder: str) -> None:
        """Have kit find the Python of an environment whose torchrun is named by its path."""
        if folder:
            self.note_names(folder)
            base = "" if folder.startswith("/") or HOLE.match(folder) else '"$PWD"/'
            self.exports.append(f'export PATH={base}{self.scope.bash(folder)}:"$PATH"')

    def _on_each_node(self, words: list[str]) -> list[str]:
        """Keep a launcher of the framework's own, which starts the ranks of each node."""
        if not self.has_srun and self.draft.nodes > 1:
            way = "kit starts it on each node: its options must say which node it is"
            self.decide(f"this ran only on the first node; {way} ($NODE_RANK, $MASTER_ADDR)")
        if os.path.basename(words[0]) == "deepspeed" and "hostfile" in " ".join(words):
            self.decide("no --hostfile is needed: `command: PROGRAM` with `launcher: torchrun`")
        self.launcher = "spawn"
        words = starter_options.with_port(words, self.scope.hole("${MASTER_PORT}", ["MASTER_PORT"]))
        own = self.own_numbers()
        self._script([self.with_texts(word, own) for word in words])
        self._write()
        return []

    def _ray(self, start: tuple[str, ...], words: list[str]) -> list[str]:
        """Return the program of `ray symmetric-run` or `ray job submit`, which is Ray's driver."""
        self.launcher = "ray"
        if self.draft.env.pop("RAY_ADDRESS", None):  # it would win over that of kit's Ray
            self.draft.take_back("env: RAY_ADDRESS")
        self.exports = [line for line in self.exports if "export RAY_ADDRESS=" not in line]
        end = words.index("--")
        shown = ", ".join(word.partition("=")[0] for word in words[:end] if word[:2] == "--")
        if shown:
            self.left_out(f"{shown} of ray: {rank_starters.STARTERS[start].to_keep}")
        return words[end + 1 :]

    # ------------------------------------------------------------ the program

    def _finish(self, words: list[str]) -> None:
        """Write the program, as a command or as a script."""
        own = self.own_numbers()
        words = [self._relative(self.with_texts(word, own)) for word in words]
        words[0] = self._with_folder(words[0])
        exports = self.own_exports(own)
        swept = [self.scope.swept(word) for word in words]
        words = words if HOLE.search("".join(swept)) else swept
        is_open = any(HOLE.search(word) for word in words[:-1])
        last = self.scope.only_hole(words[-1])
        if last and last.source in ALL and not is_open:
            self.left_out("$@: kit submit job.yaml -- ARGUMENTS adds them to the command")
            words = words[:-1]
        self._ask_what_starts(words)
        if not words:
            self.decide("write the program: `command: train.py`")
        elif exports or any(HOLE.search(word) for word in words) or self._is_written(words):
            self._script(words)
            self.lines = [*exports, *self.lines]
        else:
            is_script = len(words) > 1 and words[1].endswith(".py")
            # Without a path, kit finds the Python as the script did.
            self.draft.keys["command"] = (
                words[1:] if words[0] in ("python", "python3") and is_script else words
            )
        self._write()

    def _ask_what_starts(self, words: list[str]) -> None:
        """Ask about a variable in the place of the program, which may start ranks itself."""
        hole = self.scope.only_hole("".join(words[1:2] if words[:1] == ["eval"] else words[:1]))
        if not hole or hole.source in ALL:
            return
        text = "\n".join([hole.source, *(self.set_by.get(name, "$()") for name in hole.names)])
        is_known = not COMPUTED.search(text) or re.search(r"\bwhich\b|\bcommand -v\b", text)
        if _STARTER.search(text) or not is_known:
            way = "if it is srun or torchrun, write the program alone, and the `launcher`"
            self.decide(f"only the running job knows what {hole.source} starts: {way}")

    def _is_written(self, words: list[str]) -> bool:
        """Return whether lines before it write the program: kit looks for that of a `command`."""
        return any(os.path.normpath(word) in self.written for word in words[:2])

    def _relative(self, word: str) -> str:
        """Return a path below the folder where the program starts as a relative one."""
        holes, here = self.scope.holes_of(word), self.draft.keys.get("workdir", ".")
        is_here = bool(holes) and holes[0].hint == here and word[1:2] == "/"
        if not is_here or not HOLE.match(word):
            return word
        return word[2:] if "/" in word[2:] or word.endswith(".py") else f".{word[1:]}"

    def _with_folder(self, program: str) -> str:
        """Return a program that srun finds in its own folder, where it looks last, by a path."""
        is_by_srun = self.has_srun and not (self.is_in_task or self.draft.has_image)
        is_name = is_by_srun and re.fullmatch(r"[\w.+-]+", program)
        is_here = is_name and os.path.isfile(os.path.join(self.draft.folder, program))
        return f"./{program}" if is_here and not shutil.which(program) else program

    def _script(self, words: list[str]) -> None:
        self.ask_values(words)
        holes = [hole for word in words for hole in self.scope.holes_of(word)]
        if not self.is_in_task and any(DIFFERS.search(hole.source) for hole in holes):
            self.decide("each task would get a value of its own: set it in `host_setup`, by export")
        self.note_names("".join(words))
        start = ["python"] if words[0].endswith(".py") and "/" not in words[0][:1] else []
        shown = [self.scope.bash(word) for word in [*start, *words]]
        is_long = len(" ".join(shown)) > 100
        line = shown[0]
        for word in shown[1:]:
            line += f" \\\n  {word}" if is_long and re.match(r"--\w", word) else f" {word}"
        self.lines = [line]

    def _write(self) -> None:
        keys = self.draft.keys
        if not self.launcher:
            self.launcher = "spawn"
            if self.draft.nodes > 1:
                self.decide(ONE_NODE)
        keys["launcher"] = self.launcher
        count = self.ranks_per_node()
        if count is not None:
            keys["processes_per_node"] = str(count)
        words = keys.get("command") or re.split(r"[\s;&|()]+", "\n".join(self.lines))
        has_path = containers.has_relative_path(words) and "cd" not in words
        if self.draft.is_in_images_folder and has_path:
            self.draft.remark(self.span, containers.IN_IMAGES_FOLDER)
        resources.keep_cpus(self.draft, self.span, self.ranks())
        signal = self.draft.slurm.get("signal")
        if signal and self.launcher == "torchrun":
            del self.draft.slurm["signal"]
            way = header.checkpoint_advice(signal)
            self.decide(f"torchrun dies of the signal {signal}: {way}")
