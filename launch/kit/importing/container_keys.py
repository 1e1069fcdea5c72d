"""Write what a container and its program are given into keys of a job: image, mounts, env."""

from __future__ import annotations

import os

from kit.base.bash_tree import Span
from kit.config import variables
from kit.importing import containers, hiding
from kit.importing.commands import ASSIGNMENT
from kit.importing.containers import GivenContainer
from kit.importing.draft import AtLines, Draft
from kit.importing.holes import HOLE
from kit.importing.scope import PATH_LIKE, Scope


class ContainerKeys(AtLines):
    def __init__(self, draft: Draft, scope: Scope, span: Span) -> None:
        self.draft, self.scope, self.span = draft, scope, span
        self.exports: list[str] = []
        self.names: set[str] = set()  # variables that these, or the lines of a script, use

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
        self.draft.is_in_images_folder = found.runtime == "pyxis" and not found.workdir
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

    def _export(self, words: list[str]) -> None:
        for word in words:
            if found := ASSIGNMENT.match(word):
                self.set(found[1], found[2])
            elif word in ("HOME", "USER") or PATH_LIKE.fullmatch(word):
                self.left_out(f"{word} is each node's own, as `host_setup` leaves it")
            elif word not in ("", "ALL", "NONE", "NIL"):
                name = word.partition("=")[0]  # no variable's; what is behind it may be a secret
                self.draft.export(self.span, self.scope.source(name), None)
