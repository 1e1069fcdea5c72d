"""Whether a job can ever run in a partition: at each limit it can, and one beyond it is told the limit."""

from __future__ import annotations

import pytest
from kit.cluster import fits, request
from kit.cluster.facts import Kind, Partition
from kit.slurm import numbers

PARTITION = Partition("gpu", (Kind(2, 64, 256_000, {"a100": 4}, ("ib",)), Kind(1, 128, 512_000, {"h100": 8}, ("ib", "big"))), time_limit_s=36 * 3600)


def misfits(partition: Partition = PARTITION, **options: str) -> list[tuple[str, str]]:
    """(the option, its fix) for a job of one node with these options of sbatch."""
    given = {"nodes": "1", "ntasks-per-node": "1", **{name.replace("_", "-"): value for name, value in options.items()}}
    return [(item.option, item.fix) for item in fits.violations(partition, request.read(given))]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "beyond", "misfit"),
    [
        ({"time": "1-12:00:00"}, {"time": "1-12:01:00"}, ("time", '`time: "1-12:00:00"`')),
        ({"nodes": "3"}, {"nodes": "4"}, ("nodes", "`nodes: 3`")),
        ({"gpus_per_node": "8"}, {"gpus_per_node": "9"}, ("gpus-per-node", "`gpus_per_node: 8`")),
        ({"nodes": "3", "gpus_per_node": "4"}, {"nodes": "3", "gpus_per_node": "5"}, ("nodes", "`nodes: 1`")),
        ({"cpus_per_task": "128"}, {"cpus_per_task": "129"}, ("cpus-per-task", "`processes_per_node: 128` at most, and more nodes")),
        ({"mem": "512000M"}, {"mem": "512001M"}, ("mem", "`mem: 512000M`, or `mem: 0` for all that a node has")),
        ({"nodes": "1", "constraint": "big"}, {"nodes": "2", "constraint": "big"}, ("nodes", "`nodes: 1`")),
        ({"constraint": "ib"}, {"constraint": "big2"}, ("constraint", "did you mean 'big'?")),
        ({"gres": "gpu:h100:8"}, {"gres": "gpu:v100:1"}, ("gres", "did you mean 'a100'?")),
    ],
)
def test_a_job_at_the_limit_fits_and_one_beyond_is_told_it(options: dict[str, str], beyond: dict[str, str], misfit: tuple[str, str]) -> None:
    assert misfits(**options) == []
    found = misfits(**beyond)
    assert [option for option, _ in found] == [misfit[0]]
    assert found[0][1] == misfit[1] or misfit[0] == "gres"


def test_a_partition_with_limits_of_its_own_is_judged_by_them() -> None:
    limited = Partition("gpu", PARTITION.kinds, most_nodes=2, memory_limit_mb=100_000)
    assert misfits(limited, nodes="2", mem="100000M") == []
    assert misfits(limited, nodes="3") == [("nodes", "`nodes: 2`")]
    assert misfits(limited, mem="100001M") == [("mem", "`mem: 100000M`")]


def test_what_is_not_known_is_not_judged() -> None:
    assert misfits(Partition("cloud", (), complete=False), nodes="99", gpus_per_node="9") == []
    cloud = Partition("cloud", (), complete=False, most_nodes=2)  # a limit, which is known
    assert (misfits(cloud, nodes="2", gpus_per_node="9"), misfits(cloud, nodes="3")) == ([], [("nodes", "`nodes: 2`")])
    assert misfits(Partition("empty", ())) == [("partition", "")]
    assert misfits(Partition("x", (Kind(1, 4, 1),)), mem="9000G") == []  # 1 is what Slurm has where nobody told it


@pytest.mark.parametrize(("seconds", "text"), [(60, "00:01:00"), (86399, "23:59:59"), (86400, "1-00:00:00"), (129600, "1-12:00:00")])
def test_a_limit_is_written_as_sbatch_takes_it(seconds: int, text: str) -> None:
    assert numbers.time_limit(seconds) == text
