"""What kit reads from the dumps of PyTorch's own flight recorder: real ones, of gloo's ranks, of which one does not come."""

from kit.diagnose.flight import flight

PROGRAM = """\
import pickle, sys, time
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace

dist.init_process_group("gloo")
rank = dist.get_rank()
pair = dist.new_group([0, 1])
ones = torch.ones(3)
dist.all_reduce(ones)
dist.barrier()
if rank != 2:
    late = dist.all_reduce(torch.ones(5), async_op=True)  # line 13
# The recorder hears a moment later that a call is over.
while not all(entry["retired"] for entry in pickle.loads(_dump_fr_trace())["entries"][:2]):
    time.sleep(0.05)
with open(f"{sys.argv[1]}/flight.1.{rank}", "wb") as file:
    file.write(_dump_fr_trace())
if rank != 2:
    dist.barrier(pair)  # both have written it
    if rank == 0:
        open(f"{sys.argv[1]}/all", "w").close()
else:
    import os
    while not os.path.exists(f"{sys.argv[1]}/all"):
        time.sleep(0.05)
    dist.all_reduce(torch.ones(5))
dist.barrier()
"""


def test_the_rank_that_has_not_called_what_the_others_wait_in_is_named(start, tmp_path):
    script = tmp_path / "late.py"
    script.write_text(PROGRAM)
    start(script, tmp_path, ranks=3).finish(60).check()
    dumps = {rank: tmp_path / f"flight.1.{rank}" for rank in range(3)}
    place = f"ranks 0-1 wait in all_reduce 3 of default_pg, at {script}:13"
    said = flight.find(dumps, 3).sentence
    assert said == f"{place}; rank 2 has not called it, and was last at barrier 2, {script}:11"
    del dumps[2]
    assert flight.find(dumps, 3).sentence == f"{place}; rank 2 has left no dump"
