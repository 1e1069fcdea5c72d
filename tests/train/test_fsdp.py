import re
import shutil
from pathlib import Path

import pytest
from signalled import in_step

SCRIPT = Path(__file__).parents[2] / "train" / "fsdp.py"
STEPS = 8
BATCH = ("--batch-size", 12)  # divides by 1, 2, 3 and 4


@pytest.fixture(scope="module")
def one_process(start):
    return start(SCRIPT, *BATCH, "--steps", STEPS).finish(timeout_s=200).check()


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {ranks: tmp_path_factory.mktemp(f"checkpoints of {ranks} ranks") for ranks in (2, 4)}


@pytest.fixture(scope="module")
def two_ranks(start, folders):
    return start(SCRIPT, *BATCH, "--steps", 4, "--checkpoint", folders[2], "--save-every", 2, ranks=2).finish(timeout_s=200).check()


@pytest.fixture(scope="module")
def two_nodes(start, folders):
    return start(SCRIPT, *BATCH, "--steps", 4, "--checkpoint", folders[4], ranks=2, nodes=2).finish(timeout_s=200).check()


@pytest.fixture
def copy(folders, tmp_path):
    """Copies the checkpoints that this many ranks wrote: to go on from them removes them."""
    return lambda ranks: shutil.copytree(folders[ranks], tmp_path / "copy")


def losses(result):
    return {int(line.split()[1].split("/")[0]): float(line.split()[3]) for line in result.lines("step ")}


def held(result):
    """By rank: the bytes of parameters that it holds, and those of the whole model."""
    # Ranks share a pipe here, in which two lines may become one.
    matches = re.findall(r"rank (\d+) holds (\d+) of the model's (\d+) bytes of parameters", result.stdout)
    found = sorted(tuple(map(int, match)) for match in matches)
    assert [rank for rank, *_ in found] == list(range(len(found)))
    return [memory for _, *memory in found]


def equals(result, expected, steps):
    assert losses(result) == pytest.approx({step: losses(expected)[step] for step in steps}, rel=0, abs=1e-5)


def test_one_rank_keeps_the_whole_model_and_learns(one_process):
    ((mine, whole),) = held(one_process)
    assert mine == whole > 900_000
    found = losses(one_process)
    assert list(found) == list(range(1, STEPS + 1))
    assert found[STEPS] < found[1] - 1


def test_the_number_of_ranks_does_not_change_the_losses(one_process, two_ranks, two_nodes):
    equals(two_ranks, one_process, range(1, 5))
    equals(two_nodes, one_process, range(1, 5))


def test_every_rank_holds_only_its_shard(one_process, two_ranks, two_nodes):
    ((_, whole),) = held(one_process)
    assert held(two_ranks) == [[whole // 2, whole]] * 2
    assert held(two_nodes) == [[whole // 4, whole]] * 4


def test_every_rank_writes_its_shard_and_one_checkpoint_stays(two_ranks, two_nodes, folders):
    for ranks, folder in folders.items():
        (newest,) = folder.iterdir()
        assert newest.name == "step-00000004"
        files = {file.name: file.stat().st_size for file in newest.iterdir()}
        assert files.pop(".metadata")
        assert sorted(files) == [f"__{rank}_0.distcp" for rank in range(ranks)]
        assert max(files.values()) < sum(files.values()) * 1.2 / ranks


def test_more_ranks_go_on_from_a_checkpoint_and_ignore_an_unfinished_one(start, one_process, two_ranks, copy):
    folder = copy(ranks=2)
    (folder / "step-00000006").mkdir()  # what a run leaves that is killed while it writes
    more = start(SCRIPT, *BATCH, "--steps", STEPS, "--checkpoint", folder, ranks=3).finish(timeout_s=200).check()
    assert more.lines("going on") == [f"going on after step 4, from {folder / 'step-00000004'}"]
    equals(more, one_process, range(5, STEPS + 1))
    shards, (whole, *_) = zip(*held(more))
    assert sum(shards) == whole
    assert max(shards) < whole * 1.1 / 3  # 64 features do not divide by three, so shards differ a little
    assert [path.name for path in folder.iterdir()] == ["step-00000008"]


def test_one_rank_goes_on_from_the_shards_of_four_and_may_compute_activations_again(start, one_process, two_nodes, copy):
    folder = copy(ranks=4)
    shutil.copytree(folder / "step-00000004", folder / "step-00000004-best")  # somebody keeps it
    (folder / "step-00000005").mkdir()
    (folder / "step-00000005/model.safetensors").touch()  # another program's
    fewer = start(SCRIPT, *BATCH, "--steps", STEPS, "--checkpoint", folder, "--recompute").finish(timeout_s=200).check()
    assert fewer.lines("going on") == [f"going on after step 4, from {folder / 'step-00000004'}"]
    equals(fewer, one_process, range(5, STEPS + 1))
    assert sorted(path.name for path in folder.iterdir()) == ["step-00000004-best", "step-00000005", "step-00000008"]


def test_a_run_of_which_a_rank_is_killed_goes_on_from_the_checkpoint_before(start, one_process, tmp_path):
    (tmp_path / "killed.py").write_text(in_step(6, rank=1, signal="SIGKILL"))
    args = (SCRIPT, *BATCH, "--steps", STEPS, "--checkpoint", tmp_path / "saved", "--save-every", 2)
    killed = start(tmp_path / "killed.py", *args, ranks=2).finish(timeout_s=200)
    assert killed.codes == [1]
    equals(killed, one_process, range(1, 6))
    again = start(*args, ranks=2).finish(timeout_s=200).check()
    assert again.lines("going on") == [f"going on after step 4, from {tmp_path / 'saved/step-00000004'}"]
    equals(again, one_process, range(5, STEPS + 1))


def test_going_on_with_another_model_names_what_differs(start, two_nodes, copy):
    folder = copy(ranks=4)
    result = start(SCRIPT, *BATCH, "--width", 32, "--blocks", 2, "--checkpoint", folder).finish(timeout_s=200)
    assert result.codes == [1]
    assert result.stderr == (
        f"fsdp.py: {folder / 'step-00000004'} was written with other values of: blocks, width\n  fix: give the same values, or another --checkpoint\n"
    )


def test_a_batch_that_does_not_divide_is_refused_before_anyone_waits(start):
    result = start(SCRIPT, *BATCH, env={"RANK": "0", "WORLD_SIZE": "5", "LOCAL_WORLD_SIZE": "5"}).finish(timeout_s=200)
    assert result.codes == [1]
    assert result.stderr == (
        "fsdp.py: a batch of 12 does not divide into 5 equal shares, which the mean of the gradients needs\n"
        "  fix: --batch-size with a multiple of 5, or another number of ranks\n"
    )


# As in torch 2.4 and 2.5, which have it in a module of their own.
OLD_TORCH = """\
import runpy
import sys

import torch.distributed.fsdp

del torch.distributed.fsdp.fully_shard
sys.argv = sys.argv[1:]
sys.path.insert(0, sys.argv[0].rpartition("/")[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_a_torch_without_fully_shard_is_refused_with_the_version_it_needs(start, tmp_path):
    (tmp_path / "old_torch.py").write_text(OLD_TORCH)
    result = start(tmp_path / "old_torch.py", SCRIPT).finish(timeout_s=200)
    assert result.codes == [1]
    assert re.fullmatch(r"fsdp\.py: torch \S+ has no torch\.distributed\.fsdp\.fully_shard, which came with 2\.6\n  fix: .*\n", result.stderr)
