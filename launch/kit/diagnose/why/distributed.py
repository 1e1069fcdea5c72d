"""Lists the causes that lie between ranks: rendezvous, collectives, networks."""

from __future__ import annotations

from kit.diagnose.why import collectives
from kit.diagnose.why.cause import Cause, Weight, own_cause

# What torch raises where ranks miss each other. A program's own servers and files fail in the same
# words, with other types.
_TORCH_TYPES = r"RuntimeError|torch\.|\w*Dist\w*Error|\w*Rendezvous|nccl"

RANKS = (
    Cause(
        "left-early",
        "{who} left with exit code 0, while others still waited for it",
        "every rank must do the same number of steps and collectives: give all ranks the same "
        "number of batches (drop_last=True), and let no rank return or exit alone; its log: kit "
        "logs {job} --rank {rank}",
        where=(),
    ),
    Cause(
        "rank-missing",
        "{who} was not where the others waited for it: it hung, or was killed with its shell",
        "see its last lines: kit logs {job} --rank {rank}; every rank must reach every collective; "
        "next time, call kit hang while it hangs",
        where=(),
    ),
    own_cause(
        "port-in-use",
        "the port is in use already",
        "leave MASTER_PORT to kit, which uses a free port; to see who uses it on the first node: "
        "ss -tlnp",
        r"EADDRINUSE[^\n]*",
        r"Address already in use[^\n]*",
        r"address already in use[^\n]*",
        exception_types=_TORCH_TYPES,
    ),
    own_cause(
        "ranks-disagree",
        "the ranks called different collectives, or with different shapes",
        "every rank must call the same collectives in the same order: no `if rank == 0:` around "
        "them, equal batches on all ranks; to find the place: {again:--env "
        "TORCH_DISTRIBUTED_DEBUG=DETAIL}",
        r"op\.preamble\.length <= op\.nbytes[^\n]*",
        r"appears not to match (?:sizes|strides) of the same param in process[^\n]*",
        r"Collective (?:mismatch|sequence)[^\n]*differ[^\n]*",
        exception_types=_TORCH_TYPES,
    ),
    Cause(
        "ranks-disagree",
        "the ranks' collectives differ: {difference}",
        "every rank must call the same collectives in the same order, with tensors of one shape "
        "and type: equal batches on all ranks (drop_last=True), no `if rank == 0:` around a call; "
        "a rank's log: kit logs {job} --rank {rank}",
        (rf"{collectives.MISMATCH}[^\n]*",),
        exception_types=_TORCH_TYPES,
        retells=True,
    ),
    own_cause(
        "unused-parameters",
        "a parameter of a DDP model took no part in the loss",
        "use all outputs in the loss, or DistributedDataParallel(..., "
        "find_unused_parameters=True); to see which: {again:--env TORCH_DISTRIBUTED_DEBUG=DETAIL}",
        r"Expected to have finished reduction in the prior iteration[^\n]*",
        r"Expected to mark a variable ready only once[^\n]*",
        r"did not receive grad for rank \d+[^\n]*",
        exception_types=_TORCH_TYPES,
    ),
    own_cause(
        "no-such-interface",
        "the network interface that was named is not on this node",
        "name one that every node has: {again:--env GLOO_SOCKET_IFNAME=NAME --env "
        "NCCL_SOCKET_IFNAME=NAME}; to see a node's interfaces: ip -brief address",
        r"Unable to find interface for:[^\n]*",
        r"ifa != nullptr[^\n]*Unable to find address for[^\n]*",
        r"NET/Socket[^\n]*[Nn]o interface found[^\n]*",
        r"Bootstrap[^\n]*[Nn]o socket interface found[^\n]*",
        r"no socket interface found[^\n]*",
        exception_types=_TORCH_TYPES,
    ),
    own_cause(
        "rendezvous-timeout",
        "the ranks did not find each other in time",
        "see what the late ranks did: kit logs {job} --rank N; check that every node started the "
        "same number of ranks, and that they can reach the first node's port (firewall)",
        r"Timed out after \d+ seconds waiting for clients[^\n]*",
        r"RendezvousTimeoutError[^\n]*",
        r"The client socket has timed out after [^\n]*",
        r"The client socket has failed to connect to [^\n]*",
        r"wait timeout after \d+ms, keys: [^\n]*(?:default_pg|rank|store|worker|init)[^\n]*",
        r"Socket Timeout$",
        exception_types=_TORCH_TYPES,
    ),
    own_cause(
        "nccl-usage",
        "NCCL was called in a way that it refuses",
        "to see its own message in the log: {again:--env NCCL_DEBUG=WARN}; the usual reason is two "
        "ranks on one GPU: call set_device(LOCAL_RANK)",
        r"ncclInvalidUsage[^\n]*",
        r"ncclInvalidArgument[^\n]*",
        exception_types=_TORCH_TYPES,
    ),
    own_cause(
        "nccl-error",
        "NCCL met an error of the system, the network or CUDA",
        "to see its own message in the log: {again:--env NCCL_DEBUG=WARN}; the usual reasons: "
        "/dev/shm too small, locked memory (ulimit -l unlimited), the wrong NCCL_SOCKET_IFNAME "
        "or NCCL_IB_HCA",
        r"ncclSystemError[^\n]*",
        r"ncclUnhandledCudaError[^\n]*",
        r"ncclInternalError[^\n]*",
        r"NCCL WARN (?:Call to|Error|Cuda failure)[^\n]*",
        exception_types=_TORCH_TYPES,
    ),
    Cause(
        "nccl-timeout",
        "a collective on GPUs was not finished in time: a rank is late, hangs, or is gone",
        "next time, call kit hang while it hangs: it shows where each rank is; if rank 0 alone "
        "works for long, it needs init_process_group(timeout=...)",
        (
            r"Watchdog caught collective operation timeout[^\n]*",
            r"Some NCCL operations have failed or timed out[^\n]*",
            r"Heartbeat monitor timed out[^\n]*",
            r"Received a dump signal due to a collective timeout[^\n]*",
        ),
        weight=Weight.PEER,
        exception_types=_TORCH_TYPES,
    ),
    Cause(
        "collective-timeout",
        "a collective was not finished in time: a rank is late, hangs, or is gone",
        "next time, call kit hang while it hangs: it shows where each rank is; if rank 0 alone "
        "works for long, it needs init_process_group(timeout=...)",
        (
            r"failed to pass monitoredBarrier[^\n]*",
            r"Timed out waiting \d+ms for (?:recv|send)[^\n]*",
            r"wait timeout after \d+ms[^\n]*",
            r"Application timeout caused pair closure[^\n]*",
        ),
        weight=Weight.PEER,
        exception_types=_TORCH_TYPES,
    ),
    Cause(
        "cannot-connect",
        "the ranks cannot reach each other over the network",
        "name the interface that the nodes share: {again:--env GLOO_SOCKET_IFNAME=NAME --env "
        "NCCL_SOCKET_IFNAME=NAME}; to see a node's interfaces: ip -brief address; look for a "
        "firewall between nodes",
        (
            r"connectFullMesh failed[^\n]*",
            r"Unable to find address for[^\n]*",
            r"connect(?:\(\))? (?:timed out|failed)[^\n]*",
            r"No route to host[^\n]*",
            r"Connection refused[^\n]*",
        ),
        weight=Weight.PEER,
        exception_types=_TORCH_TYPES,
    ),
    Cause(
        "peer-gone",
        "another rank ended first, and this one noticed",
        "look for the first one: kit logs {job} --errors; if none failed, one ended too early "
        "(kit status {job}): give all ranks the same number of batches",
        (
            r"Connection closed by (?:remote )?peer[^\n]*",
            r"Connection reset by peer[^\n]*",
            r"ncclRemoteError[^\n]*",
            r"Broken pipe[^\n]*",
            r"Failed to recv, got 0 bytes[^\n]*",
            r"remote process exited or there was a network error[^\n]*",
        ),
        weight=Weight.PEER,
        exception_types=_TORCH_TYPES,
    ),
)
