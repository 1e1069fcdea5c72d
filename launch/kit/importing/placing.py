"""Place the statements before the program: on the first node, in each task, or nowhere."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from operator import attrgetter

from kit.base.bash_tree import Span
from kit.config import variables
from kit.importing import items
from kit.importing.draft import Draft
from kit.importing.items import ACTION, DEFINE, EXPORT, LIMIT, PREPARE, VALUES, Item
from kit.importing.outside import OF_MODULE, OutsideVariables
from kit.importing.scope import DIFFERS

_ARRAY = re.compile(r"\w\+?=\(|\b(mapfile|readarray)\b|\bread\b.* -\w*a")  # cannot be exported
_START_UP = re.compile(r"(source|\.)\s+\S*(\.bashrc|\.bash_profile|profile)\"?\Z")
ARGUMENT = re.compile(r"[0-9@*#]|BASH_SOURCE\b")
_ESCAPED = re.compile(r"\\\$\{?(\w+)")  # for a second reading, by eval
_EXPORTS = re.compile(r"\bexport\b[^\n;]*")
_LATER = "it comes after the program"
_IN_SETUP = "move the line to `setup`, or have the program read it"
_SPAN = attrgetter("span")


class Placing(OutsideVariables):
    def __init__(self, draft: Draft, shell: Mapping[str, str]) -> None:
        super().__init__(draft, shell)
        self.of_env: set[str] = set()  # variables that `host_setup` has from `env`
        self.needed: set[str] = set()  # variables and functions that are carried

    def add(self, item: Item) -> None:
        source = items.without_status(item.source)
        self.items.append(item._replace(source=source, folder=self.draft.folder))

    def export(self, name: str) -> None:
        """Have the lines that export a variable run, in place of `env`."""
        self.items = [
            item._replace(kind=EXPORT) if item.kind == DEFINE and name in item.sets else item
            for item in self.items
        ]

    def remove(self, source: str) -> None:
        self.items = [item for item in self.items if item.source != source]

    def place(
        self,
        needed: Collection[str],
        own_lines: list[str],
        place: int,
        of_kit: Collection[str] = variables.OWNED,
    ) -> None:
        """Write all lines of bash.

        `needed` has the names that the program's own lines use, and `of_kit` those that kit sets.
        """
        has_image = self.draft.has_image
        once: list[Item] = []
        inside: list[Item] = []
        needed = {*needed}.union(self._read_by(own_lines, needed))
        self.without_default.update(needed)
        self._leave_later(place)
        self._take_away(place)
        wanted = self._definitions(needed, DEFINE, known=of_kit)
        for item in self.items:
            if item.is_of_task and item.kind != DEFINE:
                inside.append(item)
            elif item.kind in (PREPARE, LIMIT) and item.position > place:
                self.draft.left_out(item.span, _LATER)
            elif item.kind == ACTION and item.position > place:
                self.draft.refused_behind(item.span, "kit runs nothing after the program")
            elif item.kind == EXPORT and items.is_role(item):  # known when the ranks start
                inside.append(item)
            elif item.kind != DEFINE:
                (inside if has_image and self._is_inside(item) else once).append(item)
        first = inside if has_image else once
        first += self._to_move(wanted, first)
        names = {name for item in first if not _ARRAY.search(item.source) for name in item.sets}
        wanted = self._definitions({*needed} - names, DEFINE, known={*names, *of_kit})
        used = {*needed}.union(*(item.uses for item in wanted)).difference(of_kit)
        first[:] = self._exported(sorted(first, key=_SPAN), used)
        for item in once if has_image else ():
            if item.kind != EXPORT and item.sets & used:
                self.draft.decide(item.span, items.about_outside(item.sets & used))
        known = {*of_kit, *self.draft.env}
        self.draft.host_setup += self._lines(once, "host_setup", self.of_env)
        self.draft.setup += self._lines(inside, "setup", known if has_image else known | names)
        if own_lines:
            self.draft.script += [*self._lines(wanted, "script", known | names), *own_lines]
        self._close()

    def _leave_later(self, place: int) -> None:
        """Leave out what lines behind the program set: it does not find that."""
        found: dict[bool, list[Item]] = {True: [], False: []}
        for item in self.items:
            found[item.kind in VALUES and item.position > place].append(item)
        self.items = found[False]
        for item in found[True]:
            for name in item.sets:
                self.draft.take_back(f"env: {name}", item.span)
                if self.set_by.get(name) == item.span:
                    del self.set_by[name]
            if not self.draft.is_noted(item.span):
                self.draft.left_out(item.span, _LATER)

    def _take_away(self, place: int) -> None:
        """Keep what the script unsets before the program for the host's lines before that alone."""
        for number, taker in enumerate(self.items):
            if taker.kind != LIMIT or not taker.sets or taker.position > place:
                continue
            self.items[number] = taker._replace(kind=ACTION)
            for index, item in enumerate(self.items[:number]):
                if item.kind in VALUES and item.sets & taker.sets:
                    self.items[index] = item._replace(kind=ACTION)
                    for name in taker.sets:
                        self.draft.take_back(f"env: {name}", item.span)

    def _is_inside(self, item: Item) -> bool:
        """Return whether a statement is for the container."""
        is_for_program = item.kind == PREPARE and items.is_for_program(item.source)
        return self.draft.is_in_container or item.kind in (EXPORT, LIMIT) or is_for_program

    def _to_move(self, wanted: list[Item], first: list[Item]) -> list[Item]:
        """Return those definitions that go before the program, to lines that set the same names.

        Without a container also what is computed, which is to be the same in all ranks.
        """
        computed = [] if self.draft.has_image else filter(items.is_computed, wanted)
        setters = [item for item in (*first, *computed) if not _ARRAY.search(item.source)]
        last = {name: item.span for item in sorted(setters, key=_SPAN) for name in item.sets}
        return [
            item
            for item in wanted
            if item in self.items
            and (item.sets & {*last} or any(item.span < last[name] for name in item.uses & {*last}))
        ]

    def _exported(self, chosen: list[Item], used: set[str]) -> list[Item]:
        """Return statements that export what the program's own lines use."""
        found: list[Item] = []
        for item in chosen:
            own = {*re.findall(r"\w+", "".join(_EXPORTS.findall(item.source)))}
            names = " ".join(sorted(item.sets & used - own)) if item.kind != EXPORT else ""
            if names and _ARRAY.search(item.source):
                way = "write its elements into the command"
                self.draft.decide(item.span, f"bash cannot export the array {names}: {way}")
            elif names:
                item = item._replace(source=f"{item.source}\nexport {names}")
                used = used - item.sets
            found.append(item)
        pairs = {id(old): new for old, new in zip(chosen, found)}
        self.items = [pairs.get(id(item), item) for item in self.items]
        return found

    def _definitions(
        self, names: Iterable[str], *kinds: str, known: Iterable[str] = ()
    ) -> list[Item]:
        """Return the statements that give these names their values, and what those need."""
        found: list[Item] = []
        open_names, seen = sorted(names), {*known}
        while open_names:
            name = open_names.pop(0)
            if name in seen:
                continue
            seen.add(name)
            self.needed.add(name)
            makers = [item for item in self.items if name in item.sets and item.kind in kinds]
            makers += [self.functions[name]] if name in self.functions else []
            for item in makers:
                if item not in found:
                    found.append(item)
                    open_names += [] if item.inside and EXPORT not in kinds else sorted(item.uses)
            if not makers and not any(name in item.sets for item in self.items):
                self.inherit_unset(name)
        return found

    def _lines(self, chosen: list[Item], key: str, known: set[str]) -> list[str]:
        """Return the lines of statements and of those they need; none sets `known` names alone."""
        on_host = key == "host_setup"
        as_written = [item for item in chosen if on_host or not items.is_role(item)]
        names = {name for item in as_written for name in item.uses} | self._read_unseen(chosen)
        kinds = VALUES if on_host else (DEFINE,)
        needed = [item for item in self._definitions(names, *kinds) if item not in chosen]
        found = [item for item in (*needed, *chosen) if not item.sets or item.sets - known]
        order = {id(item): number for number, item in enumerate(self.items)}  # also within a line
        each_once = {id(item): item for item in found}.values()
        ordered = sorted(each_once, key=lambda item: (item.span, order.get(id(item), -1)))
        lines: list[str] = []
        done: set[tuple[Span, str]] = set()  # a statement may be the item of several variables
        folder = self.draft.folder  # where `host_setup` begins
        for item in ordered:
            if on_host and item.folder not in ("", folder) and items.reads_folder(item):
                lines.append(items.cd_line(item.folder, folder))
                folder = item.folder
            text = item.source if on_host or not item.inside else item.inside
            text = f"{text} || true" if _START_UP.match(text) else text
            if (item.span, text) not in done:
                lines.append(text)
            done.add((item.span, text))
            self.draft.carried(item.span, key)
            self._remark(item, key, text)
        return lines

    def _read_unseen(self, chosen: list[Item]) -> set[str]:
        """Return the variables that a file which lines source, or a text of `eval`, may read.

        A second port is not among them: `host_setup` has none.
        """
        readers = {id(item) for item in chosen if self._may_read_more(item)}
        places = [place for place, item in enumerate(self.items) if id(item) in readers]
        before = self.items[: max(places, default=0)]
        values = [item for item in before if item.kind == DEFINE and not items.is_port(item)]
        return {name for item in values for name in item.sets} - variables.OWNED

    def _read_by(self, own_lines: list[str], needed: Collection[str]) -> set[str]:
        """Return the variables that the program's lines read by ${!NAME}, or in a text of eval."""
        own = "\n".join(own_lines)
        of_script = {name for item in self.items if item.kind == DEFINE for name in item.sets}
        if items.names_by_value(own):
            return of_script
        texts = [item.source for item in self.items if item.sets & {*needed} and "eval " in own]
        return of_script & {*_ESCAPED.findall("\n".join(texts))}

    def _may_read_more(self, item: Item) -> bool:
        sources = (each.source for each in (item, *self.called(item)))
        return not item.is_of_task and any(map(items.may_read_more, sources))

    def _remark(self, item: Item, key: str, text: str) -> None:
        if key != "host_setup" and DIFFERS.search(text) and not item.is_of_task:
            found = item.sets - self.functions.keys()
            what = f"${min(found)}" if len(found) == 1 else "value"
            self.draft.decide(
                item.span, f"each task would get a {what} of its own: write the value"
            )
        own = {name for name in item.sets & item.uses if not OF_MODULE.search(name)}
        for name in filter(self.is_of_shell, own - {*self.with_default}):
            others = [
                each for each in self.items if name in each.sets and each.source != item.source
            ]
            if not others and re.match(rf"(export\s+)?{name}=", item.source):
                way = f"write the whole value under `env`, as `{name}: VALUE`"
                self.draft.decide(item.span, f"${name} of your shell is not there: {way}")
        if key == "host_setup" and items.is_port(item):
            way = "move the lines that use it to `setup`, and write $MASTER_PORT there"
            self.draft.decide(item.span, f"the program gets another port, $MASTER_PORT: {way}")
        arguments = {name for name in item.uses if ARGUMENT.match(name)}
        if arguments and item.sets.isdisjoint(self.functions):
            self.draft.decide(item.span, items.about_arguments(arguments, key))
        secrets = {*self.draft.secrets}.difference(*(each.sets for each in self.items)) & item.uses
        if key == "host_setup" and secrets:
            names = ", ".join(f"${name}" for name in sorted(secrets))
            self.draft.decide(
                item.span, f"`host_setup` does not have the secret {names}: {_IN_SETUP}"
            )

    def _close(self) -> None:
        """Note what became of statements that nothing needs."""
        for item in [*self.items, *self.functions.values()]:
            is_noted = self.draft.is_noted(item.span)
            if not is_noted and item.sets & self.needed:
                self.draft.carried(item.span, "its value stands where it is used")
            elif not is_noted:
                self.draft.left_out(item.span, "nothing of the job uses it")
