"""Translate a Dockerfile into steps for engines that have no root, and no builder of their own.

All of it is read, and all that such an engine cannot do is refused, before anything is built.
"""

from __future__ import annotations

import re

from kit.base.errors import Problems
from kit.images import recipe_formats
from kit.images.dockerfile_stage import Stage
from kit.images.recipe import Recipe
from kit.registry.oci import Config

# Docker's own language, in any version.
SYNTAX = re.compile(r"(?:docker\.io/)?docker/dockerfile(?:[:@].*)?")
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
    syntax = recipe_formats.directives(recipe.text).get("syntax", "docker/dockerfile")
    if not SYNTAX.fullmatch(syntax):
        fix = "leave that line out, if the recipe is a usual Dockerfile"
        problems.add(f"{recipe.file}:1", f"{syntax} is another language", fix)
    for instruction in recipe_formats.instructions(recipe.text):
        if instruction.word == "FROM":
            stages.append(Stage(recipe, instruction, stages, bases))
        elif stages:
            stages[-1].add(instruction)
        elif instruction.word != "ARG":
            fix = "a Dockerfile begins with ARG and FROM"
            problems.add(f"{recipe.file}:{instruction.line}", "there is no FROM before it", fix)
    needed = _needed(stages)
    problems.found += [problem for stage in needed.values() for problem in stage.problems.found]
    if stages and (lines := len({problem.where for problem in problems.found})):
        subject = "1 line is" if lines == 1 else f"{lines} lines are"
        problem = f"{subject} only for Docker or Podman, not for {engine}"
        problems.add(str(recipe.file), problem, f"change what follows; or {ELSEWHERE}")
    problems.raise_if_any()
    return needed


def _needed(stages: list[Stage]) -> dict[int, Stage]:
    found, wanted = dict[int, Stage](), [len(stages) - 1] if stages else []
    while wanted:
        number = wanted.pop()
        if number not in found:
            found[number] = stages[number]
            wanted += [origin for origin in stages[number].origins if isinstance(origin, int)]
    return dict(sorted(found.items()))
