"""horovod.torch over Gloo. Ranks are told by torchrun's variables instead of MPI's."""

import os
import types

import torch.distributed as dist

Sum = "sum"


def init():
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())


def shutdown():
    dist.barrier()
    dist.destroy_process_group()


def rank():
    return dist.get_rank()


def size():
    return dist.get_world_size()


def local_rank():
    return int(os.environ.get("LOCAL_RANK", 0))


def local_size():
    return int(os.environ.get("LOCAL_WORLD_SIZE", 1))


def gloo_enabled():
    return True


def mpi_enabled():
    return False


def nccl_built():
    return False


def broadcast_parameters(parameters, root_rank):
    for tensor in parameters.values():
        dist.broadcast(tensor, src=root_rank)


def allreduce(tensor, op, name):
    assert op is Sum
    dist.all_reduce(tensor)
    return tensor


def DistributedOptimizer(optimizer, named_parameters):
    parameters = [parameter for _, parameter in named_parameters]
    step = type(optimizer).step

    def average_and_step(self):
        for parameter in parameters:
            dist.all_reduce(parameter.grad)
            parameter.grad /= size()
        return step(self)

    optimizer.step = types.MethodType(average_and_step, optimizer)
    return optimizer
