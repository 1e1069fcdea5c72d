"""Ways to hang NCCL, each with the dumps of its ranks in the folder of its name.

They are those of PyTorch's flight recorder, as its NCCL watchdog writes them: torch 2.11.0+cu130, NCCL 2.28.9, on one
NVIDIA H200 that the ranks shared, each as a node: `kit run hang.py -j 4x1 --gpus-per-node 1 -- WAY` (-j 2x1 for out_of_data).

Changed in them: the last eight entries of each rank are kept, and all of skip and pipeline; the folders of the program
and of torch have other names, and lines and functions are those of this file. They are pickled again, by protocol 2.
"""

import datetime
import os
import sys
import time

import torch
import torch.distributed as dist

device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl", timeout=datetime.timedelta(seconds=20), device_id=device)
rank, world = dist.get_rank(), dist.get_world_size()
values = torch.ones(1024, device="cuda")


def reduce(times, group=None):
    for _ in range(times):
        dist.all_reduce(values, group=group)


def stay_away():
    time.sleep(600)


def skip():
    """Rank 3 does not come to the fifth all_reduce, and the others call as many more as they like."""
    reduce(4)
    torch.cuda.synchronize()
    if rank == 3:
        stay_away()
    reduce(6 + 10 * rank)
    torch.cuda.synchronize()


def uneven():
    """What each rank sends has another size, as it may. The GPU of rank 2 never comes to the fourth exchange."""
    give = [rank + 1] * 4
    take = [1, 2, 3, 4]
    for step in range(5):
        out = torch.zeros(sum(take), device="cuda")
        if rank == 2 and step == 3:
            torch.cuda._sleep(1 << 62)
        dist.all_to_all_single(out, torch.ones(sum(give), device="cuda"), take, give)
    torch.cuda.synchronize()


def differ():
    """Rank 1 calls another collective than the others. NCCL does not notice, and it ends on ranks 0 and 1."""
    reduce(3)
    torch.cuda.synchronize()
    if rank == 1:
        dist.broadcast(values, 0)
    else:
        dist.all_gather_into_tensor(torch.ones(4096, device="cuda"), values)
    reduce(3)
    torch.cuda.synchronize()


def fsdp():
    """Rank 0 evaluates alone, for which FSDP gathers the weights."""
    from torch.distributed.fsdp import fully_shard

    net = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(3)]).cuda()
    for layer in net:
        fully_shard(layer)
    fully_shard(net)
    for _ in range(3):
        net(torch.ones(8, 64, device="cuda")).sum().backward()
    torch.cuda.synchronize()
    if rank == 0:
        with torch.no_grad():
            net(torch.ones(8, 64, device="cuda"))
        torch.cuda.synchronize()
    dist.barrier()
    torch.cuda.synchronize()


def out_of_data():
    """Rank 1 of two has fewer batches, and is in the barrier after the loop. DDP calls from C++, without a Python frame."""
    from torch.nn.parallel import DistributedDataParallel

    net = DistributedDataParallel(torch.nn.Linear(64, 64).cuda())
    for _ in range(5 if rank == 1 else 8):
        net(torch.ones(8, 64, device="cuda")).sum().backward()
        torch.cuda.synchronize()
    dist.barrier()
    torch.cuda.synchronize()


def p2p():
    """Ranks 0 and 1 each wait to receive from the other; ranks 2 and 3 wait for both."""
    reduce(2)
    torch.cuda.synchronize()
    received = torch.zeros(16, device="cuda")
    if rank == 0:
        dist.recv(received, 1)
    elif rank == 1:
        dist.recv(received, 0)
    else:
        reduce(1)
    torch.cuda.synchronize()


def pipeline():
    """Each rank receives from the one before it and sends to the next. Rank 1 leaves out one send, so a later receive of rank 2 has none."""
    received = torch.zeros(16, device="cuda")
    for step in range(6):
        operations = []
        if rank > 0:
            operations.append(dist.P2POp(dist.irecv, received, rank - 1))
        if rank < 3 and not (rank == 1 and step == 4):
            operations.append(dist.P2POp(dist.isend, torch.ones(16, device="cuda"), rank + 1))
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        torch.cuda.synchronize()
    reduce(1)
    torch.cuda.synchronize()


def coalesced():
    """Rank 1 does not come to the fourth of several all_gathers in one."""
    inputs = [torch.ones(64, device="cuda") for _ in range(3)]
    outputs = [torch.ones(256, device="cuda") for _ in range(3)]
    for step in range(5):
        if rank == 1 and step == 3:
            stay_away()
        with dist._coalescing_manager(device=values.device):
            for one_input, output in zip(inputs, outputs):
                dist.all_gather_into_tensor(output, one_input)
        torch.cuda.synchronize()


def object_gather():
    """Rank 2 does not come to a collective of Python objects."""
    reduce(2)
    torch.cuda.synchronize()
    if rank == 2:
        stay_away()
    dist.all_gather_object([None] * world, {"rank": rank})


def slow_gpu():
    """All call the same, and the GPU of rank 1 is busy for ever."""
    reduce(2)
    torch.cuda.synchronize()
    if rank == 1:
        torch.cuda._sleep(1 << 62)
    reduce(5)
    torch.cuda.synchronize()


globals()[sys.argv[1]]()
print("rank", rank, "came to the end", flush=True)
dist.destroy_process_group()
