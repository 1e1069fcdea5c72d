"""Translate a Dockerfile into steps for engines that have no root, and no builder of their own.

All of it is read, and all that such an engine cannot do is refused, before anything is built.
"""

from __future__ import annotations

import re

from kit.base.errors import Problems
from kit.images import dockerfile_text
from kit.images.dockerfile_stage import Stage
from kit.images.recipe import Recipe
from kit.registry.oci import Config

# Docker's own language, in any version, and from any registry.
SYNTAX = re.compile(r"(?:.*/)?docker/dockerfile(?:-upstream)?(?:[:@].*)?")
ELSEWHERE = (
    "build it on a machine that has one of them: `kit submit --cluster NAME` copies the image "
    "from there; or `docker save -o FILE.tar IMAGE` there and `kit build FILE.tar` here; "
    "or `docker push` there and `kit build docker://IMAGE` here"
)


def translate(recipe: Recipe, engine: str, bases: dict[str, Config]) -> dict[int, Stage]:
    """Return the last stage and those that it needs, by their numbers, the last one last.

    Raise UsageError with all of their lines that `engine` cannot build. No registry is asked.
    bases: what the images say of themselves; one that is missing counts as empty.
    """
    stages, problems = list[Stage](), Problems()
    syntax = dockerfile_text.directives(recipe.text).get("syntax", "docker/dockerfile")
    if not SYNTAX.fullmatch(syntax):
        fix = "leave that line out, if the recipe is a usual Dockerfile"
        problems.add(f"{recipe.file}:1", f"{syntax} is another language", fix)
    for instruction in dockerfile_text.instructions(recipe.text):
        if instruction.word == "FROM":
            stages.append(Stage(recipe, instruction, stages, bases))
        elif stages:
            stages[-1].add(instruction)
        elif instruction.word != "ARG":
            fix = "a Dockerfile begins with ARG and FROM"
            problems.add(f"{recipe.file}:{instruction.line}", "there is no FROM before it", fix)
    needed = {number: stages[number] for number in sorted(recipe.parts.needed)}
    problems.found += [problem for stage in needed.values() for problem in stage.problems.found]
    if stages and (lines := len({problem.where for problem in problems.found})):
        subject = "1 line is" if lines == 1 else f"{lines} lines are"
        problem = f"{subject} only for Docker or Podman, not for {engine}"
        problems.add(str(recipe.file), problem, f"change what follows; or {ELSEWHERE}")
    problems.raise_if_any()
    return needed
