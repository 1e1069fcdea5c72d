"""The table and the plots of all that results/*.json keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from measure import (
    HERE,
    KIT,
    RESULTS,
    ROOT,
    Comparison,
    Lines,
    Tally,
    goal_told,
    load,
    spread,
    tallies,
)

HEAD = (
    "| claim | kit | beside | its value | kit / its (quartiles) | goal | reached"
    " |\n|---|---|---|---|---|---|---|"
)
RUNTIMES = ("none", "apptainer", "enroot", "pyxis")
INSIDE = ("apptainer", "enroot", "pyxis", "docker")
PIPE = "docker export into mksquashfs"
BEGIN, END = "<!-- made by make bench -->", "<!-- end -->"
SENTENCES = f"""\
{BEGIN}
- A warm start on three nodes took {{least_start:.2f}} to {{most_start:.2f}} times as long as by \
a hand-written script, over four runtimes (n={{starts}}; the runs of one side differ as much).
- A job on 64 nodes ended after {{many:.1f}} s; a plain `srun` instead took {{many_by_srun:.1f}} s.
- kit made a file of a {{image_gb:.1f}} GB image in {{image:.0f}} s; `enroot import` took \
{{image_by_enroot:.0f}} s and `apptainer build` {{image_by_apptainer:.0f}} s, each with its \
default compression. Piping `docker export` into `mksquashfs` by hand is faster: kit takes \
{{image_by_pipe:.2f}} times as long.
- An epoch inside a container took {{least_epoch:.2f}} to {{most_epoch:.2f}} times as long as \
outside.
- A dry run takes {{dry_run:.1f}} s. `kit why` reads made-up logs of 8,000 ranks in {{why:.1f}} s.

All measured on machines with two cores and no GPU: \
[spreads, versions, missed goals](bench/RESULTS.md).
{END}"""


def write() -> None:
    """RESULTS.md, its plots, and the README's sentences on speed, anew."""
    (HERE / "RESULTS.md").write_text(text())
    readme = (ROOT / "README.md").read_text()
    (ROOT / "README.md").write_text(readme.replace(quoted(readme), sentences()))
    for name in measured():
        _, comparisons, pictures = load(name)
        if comparisons:
            draw_ratios(name, comparisons)
        for number, picture in enumerate(pictures, 1):
            draw_lines(RESULTS / f"{name}-{number}.svg", picture)


def measured() -> list[str]:
    return sorted(file.stem for file in RESULTS.glob("*.json"))


def text() -> str:
    """All of it, a section for each benchmark."""
    head = (
        "# What is measured\n\nMade by `make bench`. A ratio is kit's value over the other side's,"
        " of the same round; the median and its quartiles.\n"
    )
    return "\n".join([head, goals(), *map(section, measured())])


def section(name: str) -> str:
    record, comparisons, pictures = load(name)
    lines = [f"## {name}\n", f"{where(record)}. By `python bench/{name}.py`.\n"]
    for tally in tallies(name):
        lines += counts(tally)
    if not comparisons:
        return "\n".join(lines) + "\n"
    lines += [HEAD]
    lines += [row for comparison in comparisons for row in rows(comparison)]
    lines += [
        f"\n{comparison.claim}: {comparison.does}{' ' + comparison.why if comparison.why else ''}"
        for comparison in comparisons
    ]
    lines.append(f"\n![ratios of {name}](results/{name}.svg)")
    lines += [
        f"\n![{picture.title}](results/{name}-{number}.svg)"
        for number, picture in enumerate(pictures, 1)
    ]
    return "\n".join(lines) + "\n"


def where(record: dict[str, Any]) -> str:
    machine, versions = (
        ", ".join(f"{key} {value}" for key, value in record[part].items())
        for part in ("machine", "versions")
    )
    return (
        f"{record['measured']}, n={record['rounds']}: {machine}{'; ' if versions else ''}{versions}"
    )


def goals() -> str:
    """Of what has a goal, the headlines and all that is missed; and where it was measured."""
    lines = [
        "## The main goals",
        "",
        "| | kit | beside | kit / beside | goal | n |",
        "|---|---|---|---|---|---|",
    ]
    places, reasons = [], []
    for name in measured():
        record, comparisons, _ = load(name)
        lines += map(counted_goal, tallies(name))
        for comparison in comparisons:
            missed = comparison.missed()
            for goal in comparison.goals if comparison.headline else missed:
                shown = f"{comparison.ratio(goal.beside).median:.3g}"
                if goal.floor:
                    shown += f", {comparison.reached(goal):.3g} over {goal.floor}"
                if goal.over:
                    shown += f", {comparison.reached(goal):.2g} {comparison.unit} over"
                wanted = (
                    f"{'**missed:** ' if goal in missed else ''}{goal_told(goal, comparison.unit)}"
                )
                values = [
                    f"{comparison.spread(side).median:.3g} {comparison.unit}"
                    for side in (KIT, goal.beside)
                ]
                lines.append(
                    f"| {comparison.claim} | {values[0]} | {goal.beside}: {values[1]} | {shown} |"
                    f" {wanted} | {len(comparison.values[KIT])} |"
                )
            if missed and comparison.why:
                reasons.append(f"- {comparison.claim}: {comparison.why}")
        places.append(f"- {name}: {where(record)}")
    return "\n".join(
        [
            *lines,
            "",
            *(["Why some are missed:", "", *reasons, ""] if reasons else []),
            "Measured:",
            "",
            *places,
            "",
        ]
    )


def sentences() -> str:
    """Return what the README says of speed: what a user wants to know first, good or bad."""
    starts = [ratio("launch", f"launch under {name}, warm", "by hand") for name in RUNTIMES]
    epochs = [ratio("training", f"an epoch of cifar10 inside {name}", "outside") for name in INSIDE]
    image = "make one file (train)"
    many = "64 nodes, one rank each: from sbatch to the end"
    return SENTENCES.format(
        least_start=min(starts),
        most_start=max(starts),
        starts=load("launch")[0]["rounds"],
        many=of("nodes", many),
        many_by_srun=of("nodes", many, "plain srun"),
        image_gb=of("image", "extra disk at its peak (train)", "the image's files") / 1000,
        image=of("image", image),
        image_by_enroot=of("image", image, "enroot import"),
        image_by_apptainer=of("image", image, "apptainer build"),
        image_by_pipe=ratio("export", "make one file of an image of the engine", PIPE),
        least_epoch=min(epochs),
        most_epoch=max(epochs),
        dry_run=of("startup", "dry run of 2x2, from job.yaml"),
        why=of("scale", "kit why, 1,000 x 8: time"),
    )


def named(name: str, claim: str) -> Comparison:
    return next(comparison for comparison in load(name)[1] if comparison.claim == claim)


def of(name: str, claim: str, side: str = KIT) -> float:
    """Return a side's median."""
    return named(name, claim).spread(side).median


def ratio(name: str, claim: str, side: str) -> float:
    return named(name, claim).ratio(side).median


def quoted(readme: str) -> str:
    """The README's part between the two marks, with them."""
    return readme[readme.index(BEGIN) : readme.index(END) + len(END)]


def counts(tally: Tally) -> list[str]:
    """A table with a line for each kind."""
    lines = [f"| {tally.claim} | right | {tally.measured}: median (quartiles) | longest |"]
    lines.append("|---|---|---|---|")
    every = [value for values in tally.values.values() for value in values]
    right, of_all = tally.counted()
    right_of_kind = {kind: (sum(cases), len(cases)) for kind, cases in tally.right.items()}
    for kind, values in {**tally.values, "**all**": every}.items():
        low, middle, high = spread(values)
        count = "{} of {}".format(*right_of_kind.get(kind, (right, of_all)))
        lines.append(
            f"| {kind} | {count} | {middle:.1f} s ({low:.1f}-{high:.1f}) | {max(values):.1f} s |"
        )
    return [*lines, "", f"{tally.does}{' ' + tally.why if tally.why else ''}"]


def counted_goal(tally: Tally) -> str:
    right, every = tally.counted()
    wanted = f"at least {tally.share * every:g}"
    return (
        f"| {tally.claim} | {right} of {every} | | | "
        f"{'**missed:** ' if tally.is_missed() else ''}{wanted} | {every} |"
    )


def rows(comparison: Comparison) -> list[str]:
    """One line for each other side."""
    lines = []
    for side in comparison.sides():
        low, middle, high = comparison.ratio(side)
        goals = [goal for goal in comparison.goals if goal.beside == side]
        wanted = "; ".join(goal_told(goal, comparison.unit) for goal in goals)
        reached = "; ".join(
            f"{comparison.reached(goal):.3g}{' **missed**' if goal in comparison.missed() else ''}"
            for goal in goals
        )
        values = [f"{comparison.spread(key).median:.3g} {comparison.unit}" for key in (KIT, side)]
        lines.append(
            f"| {comparison.claim} | {values[0]} | {side} | {values[1]} | {middle:.3f}"
            f" ({low:.3f}-{high:.3f}) | {wanted} | {reached} |"
        )
    return lines


def draw_ratios(name: str, comparisons: list[Comparison]) -> None:
    """A bar for each ratio, with its quartiles, on a logarithmic axis whose middle is 1."""
    import matplotlib.pyplot as plt

    pairs = [
        (f"{comparison.claim}\nbeside {side}", comparison.ratio(side))
        for comparison in comparisons
        for side in comparison.sides()
    ]
    figure, axes = plt.subplots(figsize=(9, 0.6 + 0.45 * len(pairs)), layout="constrained")
    for place, (_, (low, middle, high)) in enumerate(reversed(pairs)):
        axes.barh(
            place, middle - 1, left=1, height=0.6, color="#2a7f62" if middle <= 1 else "#b5533c"
        )
        axes.plot([low, high], [place, place], color="black", linewidth=1)
    axes.set_yticks(range(len(pairs)), [text for text, _ in reversed(pairs)], fontsize=7)
    axes.set_xscale("log")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xlabel("kit / beside (left of 1: kit is faster or smaller)")
    save(figure, RESULTS / f"{name}.svg")


def draw_lines(file: Path, picture: Lines) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for label, points in picture.points.items():
        axes.plot(*zip(*points), marker="o", markersize=3, label=label)
    if picture.log:
        axes.set_xscale("log")
        axes.set_yscale("log")
    axes.set(title=picture.title, xlabel=picture.x, ylabel=picture.y)
    axes.legend(fontsize=8)
    save(figure, file)


def save(figure: object, file: Path) -> None:
    """The same file for the same figures: no date, no random names."""
    import matplotlib.pyplot as plt

    plt.rcParams["svg.hashsalt"] = "kit"
    figure.savefig(file, metadata={"Date": None})  # type: ignore[attr-defined]
    plt.close(figure)  # type: ignore[arg-type]
