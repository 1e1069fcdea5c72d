# shellcheck shell=bash
# shellcheck disable=SC2034  # the scripts beside this file use these variables
# shellcheck disable=SC1003,SC2016,SC2191  # values are data: what looks like code inside the quotes is not
# env.sh - every value of this run; the other scripts hold none. Edit it and submit again: sbatch run_script.sh

NNODES=2
NPROC_PER_NODE=4
KIT_MAX_RESTARTS=0 # of all ranks, when one has failed
KIT_ELASTIC= # whether torchrun itself restarts them
KIT_GPUS_PER_NODE=4 # for a check; the #SBATCH lines ask for them

KIT_SPARES=0 # nodes that are allocated beyond NNODES, to do without bad ones
KIT_NAME='digits & more'
KIT_LAUNCHER=torchrun
KIT_TASKS_PER_NODE=1 # Slurm's tasks; the launcher starts the ranks
KIT_CPU_BIND=none
KIT_MPI= # whether Slurm tells MPI programs their ranks
KIT_NEEDS_ADDRESSES= # of all nodes, not the first one's alone
KIT_RUNTIME=docker
KIT_IMAGE=docker://train
KIT_SUBMITTED_FINGERPRINT=0123456789abcdef # no other image is started; empty: whatever is there
KIT_SUBMITTED_SHA256='' # of a file of kit build, where nodes copy it; empty: whatever it is
KIT_REMAP_ROOT=
KIT_STAGE=none
KIT_ON_PREEMPT=none
KIT_SCRATCH=/tmp
KIT_READY_TIMEOUT_S=1200 # for all nodes to have their container
KIT_WORKDIR=/shared/project

# source, target, rw or ro
KIT_MOUNTS=(
  /shared/project /shared/project rw
  /data /data ro
)

KIT_CODE=
KIT_COMMAND=(train.py --name $'it\'s $HOME\n')

# The job's own variables; set inside the container, last, so that no image wins over them.
KIT_ENV=(
  NCCL_DEBUG=INFO
  GREETING='a b'
)
