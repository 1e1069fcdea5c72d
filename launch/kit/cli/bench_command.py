"""Run: bench."""

import functools
import sys
from typing import Annotated, Optional

from kit.api.job_request import JobRequest, Use
from kit.base.errors import refuse_together
from kit.cli import completion
from kit.cli.app import RUN, command
from kit.cli.job_options import SHAPED, takes_job
from kit.cli.options import DryRun, Json, Local, Output, Svg, flag, option

Sizes = Annotated[
    Optional[str],
    option(
        "--sizes", "LIST", "Sizes to measure: 1K-256M, or 1M,8M,64M.", "1K to 64M; on GPUs to 1G"
    ),
]
Repeats = Annotated[
    Optional[int], option("--repeats", "N", "How often to measure each size.", "for a second")
]
Pairs = Annotated[
    bool, flag("--pairs", "Also measure each pair of nodes, and name a slow node or link.")
]
Expected = Annotated[
    Optional[str], option("--expect", "GBPS", "Bus bandwidth that you expect.", "the profile's")
]
Share = Annotated[
    Optional[str], option("--share", "PART", "Exit with 1 below this part of it.", "0.8")
]
Measured = Annotated[
    Optional[str],
    option("--show", "RUN", "Show what an earlier run measured.", autocompletion=completion.runs),
]


@command(RUN, "kit bench -j 2x8 --pairs", "kit bench job.yaml --expect 180")
@functools.partial(takes_job, target=SHAPED)
def bench(
    job: JobRequest,
    output: Output = None,
    sizes: Sizes = None,
    repeats: Repeats = None,
    pairs: Pairs = False,
    local: Local = False,
    expect: Expected = None,
    least_part: Share = None,
    show: Measured = None,
    svg: Svg = None,
    as_json: Json = False,
    dry_run: DryRun = False,
) -> None:
    """Measure all-reduce in the job's image and shape.

    Names a slow node or link: docs/bench.md.
    """
    from kit.cli import measurement
    from kit.cluster.bench import bandwidth
    from kit.cluster.bench import bench as benchmark
    from kit.runs import array_status

    shown = measurement.Shown(svg, as_json)
    for name, is_given in {"--json": as_json, "--svg": svg}.items():
        refuse_together({"--dry-run": dry_run, name: is_given})
    if show is not None:
        own = {"--output": output, "--sizes": sizes, "--repeats": repeats, "--pairs": pairs}
        own |= {"--local": local, "--expect": expect, "--share": least_part, "--dry-run": dry_run}
        refuse_together({"--show": True, "JOB": job.target, **dict.fromkeys(job.options, 1), **own})
        sys.exit(measurement.show(bandwidth.read(array_status.single(show)), shown))
    request = benchmark.BenchRequest(sizes, repeats, pairs, local, expect, least_part, dry_run)
    found = benchmark.load(job.target, job.overrides, job.arguments, job.problems)
    use = Use(code="live", runs_here=local, is_local=local, is_dry=dry_run)
    plan = job.plan(found, output, use)
    sys.exit(measurement.run(plan, request, shown))
