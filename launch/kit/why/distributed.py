"""Causes that lie with GPUs and drivers, and between the ranks: rendezvous, collectives, networks."""

from __future__ import annotations

from kit.why.cause import ANYWHERE, NODE, RANK, Cause, Weight

OWN, PEER = Weight.OWN, Weight.PEER
_HERE = (RANK, NODE)
# What torch raises where ranks miss each other; a program's own servers and files have errors of the same words.
_OF_TORCH = r"RuntimeError|torch\.|\w*Dist\w*Error|\w*Rendezvous|nccl"

GPUS = (
    Cause(
        "driver-too-old",
        "the node's driver is too old for the image's CUDA",
        "choose an image with an older CUDA ({again:--image IMAGE}), or nodes with a newer driver; the newest CUDA that it can do: nvidia-smi | head -4",
        OWN,
        ANYWHERE,
        (
            r"CUDA driver version is insufficient[^\n]*",
            r"The NVIDIA driver on your system is too old[^\n]*",
            r"forward compatibility was attempted on non supported HW[^\n]*",
            r"the provided PTX was compiled with an unsupported toolchain[^\n]*",
            r"unsatisfied condition: cuda[^\n]*",
        ),
    ),
    Cause(
        "gpu-not-supported",
        "the image's PyTorch was not built for this kind of GPU",
        "choose an image whose torch knows it: {again:--image IMAGE}; what it knows: python -c 'import torch; print(torch.cuda.get_arch_list())'",
        OWN,
        _HERE,
        (r"no kernel image is available for execution[^\n]*", r"is not compatible with the current PyTorch installation[^\n]*"),
    ),
    Cause(
        "checkpoint-of-a-gpu",
        "the checkpoint's tensors were on a GPU, and none is visible here",
        "torch.load(..., map_location='cpu'), then .to(device); or ask for GPUs: {again:--gpus-per-node 8}",
        OWN,
        _HERE,
        (r"Attempting to deserialize object on a CUDA device[^\n]*",),
    ),
    Cause(
        "no-driver",
        "no NVIDIA driver is visible in the container",
        "ask for GPUs ({again:--gpus-per-node 8}); on the node: nvidia-smi; and is the runtime's NVIDIA part (nvidia-container-toolkit, --nv) installed there?",
        OWN,
        ANYWHERE,
        (
            r"Found no NVIDIA driver on your system[^\n]*",
            r"No CUDA GPUs are available[^\n]*",
            r"could not select device driver[^\n]*gpu[^\n]*",
            r"libcuda\.so[.\d]*: cannot open shared object file[^\n]*",
            r"no CUDA-capable device is detected[^\n]*",
            r"device_ids[^\n]*only work with[^\n]*",
            r"torch\.cuda\.is_available\(\) is False[^\n]*",
            r"nvidia-container-cli: [^\n]*error[^\n]*",
        ),
    ),
    Cause(
        "torch-without-cuda",
        "the PyTorch in {inside} is the one for CPUs",
        "choose an image with CUDA, or build it for GPUs: kit build --device gpu",
        OWN,
        _HERE,
        (
            r"Torch not compiled with CUDA enabled",
            r"has no attribute '_cuda_\w+'",
            r"ProcessGroupNCCL is only supported with GPUs[^\n]*",
            r"Distributed package doesn't have NCCL built in[^\n]*",
        ),
    ),
    Cause(
        "no-such-gpu",
        "a rank uses a GPU that its node does not show it",
        "as many ranks as GPUs on each node: {again:--gpus-per-node {processes}}; torch.cuda.set_device(int(os.environ['LOCAL_RANK'])); and "
        "leave CUDA_VISIBLE_DEVICES alone",
        OWN,
        _HERE,
        (r"CUDA error: invalid device ordinal[^\n]*", r"Duplicate GPU detected[^\n]*", r"Invalid device id", r"device >= 0 && device < num_gpus[^\n]*"),
    ),
    Cause(
        "index-out-of-range",
        "an index lies outside of its tensor: mostly a label or a token that is too large",
        "compare the largest label or token with the model's size; on a GPU run one step on the CPU, where the message is clear, or {again:--env "
        "CUDA_LAUNCH_BLOCKING=1}",
        OWN,
        _HERE,
        (
            r"device-side assert triggered[^\n]*",
            r"index out of range in self[^\n]*",
            r"Assertion [^\n]*(?:index out of bounds|t >= 0 && t < n_classes|srcIndex < srcSelectDimSize)[^\n]*failed[^\n]*",
        ),
    ),
    Cause(
        "illegal-gpu-access",
        "a kernel on the GPU touched memory that is not its own",
        "find the line: {again:--env CUDA_LAUNCH_BLOCKING=1}; custom kernels and extensions that were built for another torch are the usual reason",
        OWN,
        _HERE,
        (
            r"an illegal memory access was encountered[^\n]*",
            r"CUDA error: (?:misaligned address|unspecified launch failure|an illegal instruction was encountered)[^\n]*",
        ),
    ),
    Cause(
        "shape-mismatch",
        "tensors have shapes that do not fit each other",
        "compare the shapes that the line names with the model's arguments; the last batch of an epoch may be smaller (drop_last=True)",
        OWN,
        _HERE,
        (
            r"mat1 and mat2 shapes cannot be multiplied[^\n]*",
            r"The size of tensor a \(\d+\) must match the size of tensor b[^\n]*",
            r"shape '[^'\n]*' is invalid for input of size \d+[^\n]*",
            r"Sizes of tensors must match except in dimension[^\n]*",
            r"Expected input batch_size \(\d+\) to match target batch_size[^\n]*",
            r"stack expects each tensor to be equal size[^\n]*",
            r"Given groups=\d+, weight of size [^\n]*",
            r"(?:size mismatch|inconsistent tensor size|operands could not be broadcast)[^\n]*",
        ),
    ),
    Cause(
        "device-mismatch",
        "tensors of one operation are on different devices",
        "move both to the rank's device: .to(device), with device = torch.device('cuda', int(os.environ['LOCAL_RANK']))",
        OWN,
        _HERE,
        (
            r"Expected all tensors to be on the same device[^\n]*",
            r"Input type \([^)\n]*\) and weight type \([^)\n]*\) should be the same[^\n]*",
            r"Unhandled FakeTensor Device Propagation[^\n]*",
            r"tensor is on \S+(?: device)?, but expected[^\n]*|Tensor on device \S+ is not on the expected device[^\n]*",
        ),
    ),
)

RANKS = (
    Cause(
        "left-early",
        "{who} left with exit code 0, while others still waited for it",
        "every rank must take as many steps and collectives: batches must be as many on all (drop_last=True), and no rank may return or exit alone; "
        "what it said: kit logs {job} --rank {rank}",
        OWN,
        (),
        (),
    ),
    Cause(
        "rank-missing",
        "{who} was not where the others waited for it: it hung, or was killed with its shell",
        "see what it said last: kit logs {job} --rank {rank}; every rank must come to every collective; next time, while it hangs: kit hang {job}",
        OWN,
        (),
        (),
    ),
    Cause(
        "port-in-use",
        "the port is in use already",
        "leave MASTER_PORT to kit, which takes a free one; who has it on the first node: ss -tlnp",
        OWN,
        _HERE,
        (r"EADDRINUSE[^\n]*", r"Address already in use[^\n]*", r"address already in use[^\n]*"),
        types=_OF_TORCH,
    ),
    Cause(
        "ranks-disagree",
        "the ranks called different collectives, or with different shapes",
        "every rank must call the same ones in the same order: no `if rank == 0:` around them, equal batches on all; the place: {again:--env "
        "TORCH_DISTRIBUTED_DEBUG=DETAIL}",
        OWN,
        _HERE,
        (
            r"Detected mismatch between collectives on ranks[^\n]*",
            r"op\.preamble\.length <= op\.nbytes[^\n]*",
            r"appears not to match (?:sizes|strides) of the same param in process[^\n]*",
            r"Collective (?:mismatch|sequence)[^\n]*differ[^\n]*",
        ),
        types=_OF_TORCH,
    ),
    Cause(
        "unused-parameters",
        "a parameter of a DDP model took no part in the loss",
        "use all outputs in the loss, or DistributedDataParallel(..., find_unused_parameters=True); which: {again:--env TORCH_DISTRIBUTED_DEBUG=DETAIL}",
        OWN,
        _HERE,
        (
            r"Expected to have finished reduction in the prior iteration[^\n]*",
            r"Expected to mark a variable ready only once[^\n]*",
            r"did not receive grad for rank \d+[^\n]*",
        ),
        types=_OF_TORCH,
    ),
    Cause(
        "no-such-interface",
        "the network interface that was named is not on this node",
        "name one that every node has: {again:--env GLOO_SOCKET_IFNAME=NAME --env NCCL_SOCKET_IFNAME=NAME}; those of a node: ip -brief address",
        OWN,
        _HERE,
        (
            r"Unable to find interface for:[^\n]*",
            r"ifa != nullptr[^\n]*Unable to find address for[^\n]*",
            r"NET/Socket[^\n]*[Nn]o interface found[^\n]*",
            r"Bootstrap[^\n]*[Nn]o socket interface found[^\n]*",
            r"no socket interface found[^\n]*",
        ),
        types=_OF_TORCH,
    ),
    Cause(
        "rendezvous-timeout",
        "the ranks did not find each other in time",
        "see what the late ones did: kit logs {job} --rank N; did every node start as many ranks, and can they reach the first node's port (firewall)?",
        OWN,
        _HERE,
        (
            r"Timed out after \d+ seconds waiting for clients[^\n]*",
            r"RendezvousTimeoutError[^\n]*",
            r"The client socket has timed out after [^\n]*",
            r"The client socket has failed to connect to [^\n]*",
            r"wait timeout after \d+ms, keys: [^\n]*(?:default_pg|rank|store|worker|init)[^\n]*",
            r"Socket Timeout$",
        ),
        types=_OF_TORCH,
    ),
    Cause(
        "nccl-usage",
        "NCCL was called in a way that it refuses",
        "its own words are in the log with {again:--env NCCL_DEBUG=WARN}; two ranks on one GPU are the usual reason: set_device(LOCAL_RANK)",
        OWN,
        _HERE,
        (r"ncclInvalidUsage[^\n]*", r"ncclInvalidArgument[^\n]*"),
        types=_OF_TORCH,
    ),
    Cause(
        "nccl-error",
        "NCCL met an error of the system, the network or CUDA",
        "its own words are in the log with {again:--env NCCL_DEBUG=WARN}; the usual reasons: /dev/shm too small, locked memory (ulimit -l "
        "unlimited), the wrong NCCL_SOCKET_IFNAME or NCCL_IB_HCA",
        OWN,
        _HERE,
        (r"ncclSystemError[^\n]*", r"ncclUnhandledCudaError[^\n]*", r"ncclInternalError[^\n]*", r"NCCL WARN (?:Call to|Error|Cuda failure)[^\n]*"),
        types=_OF_TORCH,
    ),
    Cause(
        "nccl-timeout",
        "a collective on GPUs was not finished in time: a rank is late, hangs, or is gone",
        "next time, while it hangs: kit hang {job} shows where each rank is; rank 0's long work alone wants init_process_group(timeout=...)",
        PEER,
        _HERE,
        (
            r"Watchdog caught collective operation timeout[^\n]*",
            r"Some NCCL operations have failed or timed out[^\n]*",
            r"Heartbeat monitor timed out[^\n]*",
            r"Received a dump signal due to a collective timeout[^\n]*",
        ),
        types=_OF_TORCH,
    ),
    Cause(
        "collective-timeout",
        "a collective was not finished in time: a rank is late, hangs, or is gone",
        "next time, while it hangs: kit hang {job} shows where each rank is; rank 0's long work alone wants init_process_group(timeout=...)",
        PEER,
        _HERE,
        (
            r"failed to pass monitoredBarrier[^\n]*",
            r"Timed out waiting \d+ms for (?:recv|send)[^\n]*",
            r"wait timeout after \d+ms[^\n]*",
            r"Application timeout caused pair closure[^\n]*",
        ),
        types=_OF_TORCH,
    ),
    Cause(
        "cannot-connect",
        "the ranks cannot reach each other over the network",
        "name the interface that the nodes share: {again:--env GLOO_SOCKET_IFNAME=NAME --env NCCL_SOCKET_IFNAME=NAME}; those of a node: ip "
        "-brief address; a firewall between nodes?",
        PEER,
        _HERE,
        (
            r"connectFullMesh failed[^\n]*",
            r"Unable to find address for[^\n]*",
            r"connect(?:\(\))? (?:timed out|failed)[^\n]*",
            r"No route to host[^\n]*",
            r"Connection refused[^\n]*",
        ),
        types=_OF_TORCH,
    ),
    Cause(
        "peer-gone",
        "another rank ended first, and this one noticed",
        "look for the first one: kit logs {job} --errors; if none failed, one ended too early: batches must be as many on all ranks; kit status {job}",
        PEER,
        _HERE,
        (
            r"Connection closed by (?:remote )?peer[^\n]*",
            r"Connection reset by peer[^\n]*",
            r"ncclRemoteError[^\n]*",
            r"Broken pipe[^\n]*",
            r"Failed to recv, got 0 bytes[^\n]*",
            r"remote process exited or there was a network error[^\n]*",
        ),
        types=_OF_TORCH,
    ),
)
