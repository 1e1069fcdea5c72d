# shellcheck shell=bash
# shellcheck disable=SC2034  # the scripts beside this file use these variables
# shellcheck disable=SC1003,SC2016,SC2088,SC2191  # values are data: what looks like code inside the quotes is not
# env.sh - every value of this run; the other scripts hold none. Edit it and submit again: sbatch run_script.sh

NNODES=2
NPROC_PER_NODE=4
KIT_MAX_RESTARTS=0 # how often all ranks start again
KIT_ELASTIC= # whether torchrun itself does that
KIT_GPUS_PER_NODE=4 # to check; the #SBATCH lines request them

KIT_SPARES=0 # extra nodes beyond NNODES, to start without bad ones
KIT_NAME='digits & more'
KIT_LAUNCHER=torchrun
KIT_TASKS_PER_NODE=1 # Slurm's tasks; the launcher starts the ranks
KIT_CPU_BIND=none
KIT_MPI= # whether Slurm tells MPI programs their ranks
KIT_NEEDS_ADDRESSES= # of all nodes, not only of the first
KIT_RUNTIME=none
KIT_IMAGE=''
KIT_SUBMITTED_FINGERPRINT=0123456789abcdef # the job refuses any other image; empty: any image
KIT_SUBMITTED_SHA256='' # of a file of kit build; nodes check their copies; empty: no check
KIT_REMAP_ROOT=
KIT_STAGE=none
KIT_ON_PREEMPT=none
KIT_SCRATCH=/tmp
KIT_READY_TIMEOUT_S=1200 # until all nodes must have their container
KIT_WORKDIR=/shared/project

# source, target, rw or ro; data: a squashfs file, whose content is mounted
KIT_MOUNTS=(
)

KIT_CODE=
KIT_COMMAND=(train.py --name $'it\'s $HOME\n')

# The job's own variables; set inside the container, last, so that no image wins over them.
KIT_ENV=(
  NCCL_DEBUG=INFO
  GREETING='a b'
)
