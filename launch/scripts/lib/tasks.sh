# tasks.sh - for launchers whose ranks are Slurm's tasks.

# tasks::set_ranks - what torchrun would say, from what Slurm says of its task.
tasks::set_ranks() {
  export RANK="${SLURM_PROCID}" LOCAL_RANK="${SLURM_LOCALID}" GROUP_RANK="${NODE_RANK}"
  export LOCAL_WORLD_SIZE="${NPROC_PER_NODE}" WORLD_SIZE="$((NNODES * NPROC_PER_NODE))"
  ((RANK == NODE_RANK * NPROC_PER_NODE + LOCAL_RANK)) ||
    kit::die "rank ${RANK} is local rank ${LOCAL_RANK} of node ${NODE_RANK}: ranks are not in the nodes' order" "unset SLURM_HOSTFILE and SLURM_ARBITRARY_NODELIST: with them Slurm orders the tasks in another way"
}
