# tasks.sh - for launchers whose ranks are Slurm's tasks.

# tasks::set_ranks - what torchrun would say, from what Slurm says of its task: Slurm 26.05 numbers tasks by the network's topology, which may
# be another order than that of the nodes. MPI counts as Slurm does.
tasks::set_ranks() {
  export LOCAL_RANK="${SLURM_LOCALID}" GROUP_RANK="${NODE_RANK}" RANK="$((NODE_RANK * NPROC_PER_NODE + SLURM_LOCALID))"
  export LOCAL_WORLD_SIZE="${NPROC_PER_NODE}" WORLD_SIZE="$((NNODES * NPROC_PER_NODE))"
  ((LOCAL_RANK < NPROC_PER_NODE)) && [[ "${SLURM_PROCID}" == "${RANK}" || -z "${KIT_MPI}" ]] ||
    kit::die "rank ${SLURM_PROCID} is local rank ${LOCAL_RANK} of node ${NODE_RANK}: ranks are not in the nodes' order" \
      "unset SLURM_HOSTFILE and SLURM_ARBITRARY_NODELIST, which order tasks in another way; so may Slurm 26.05, by the network, and a program without MPI can do with that: \`launcher: srun\`"
  export SLURM_PROCID="${RANK}"
}
