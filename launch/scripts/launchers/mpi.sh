#!/usr/bin/env bash
# mpi.sh - runs inside the container, once for every rank: as srun.sh, with Slurm's PMIx, through which the image's MPI
# learns its rank and its peers. mpi4py and Horovod programs start this way; no mpirun, no ssh.
# tasks-per-node: processes
# cpu-bind: cores
# mpi: yes
# signals: passed-on
set -euo pipefail +o posix +o noclobber && shopt -u failglob
[[ "${BASH_SOURCE[0]}" == /* ]] || exec bash "${PWD}/${BASH_SOURCE[0]}" "$@" # by hand
readonly KIT_RUN_DIR="${BASH_SOURCE[0]%/*}"

source "${KIT_RUN_DIR}/lib/container.sh"
source "${KIT_RUN_DIR}/lib/signals.sh"
source "${KIT_RUN_DIR}/lib/tasks.sh"

container::begin "$@"
program::choose mpi4py horovod torch
# Each rank has a container, so a user namespace, of its own: Open MPI would try to read across, fail, and say so.
[[ "${KIT_RUNTIME}" == none ]] || export OMPI_MCA_btl_vader_single_copy_mechanism=none
# For torch beside MPI; MPI itself asks Slurm.
tasks::set_ranks
container::job_env
rank::run "${KIT_PROGRAM[@]}"
