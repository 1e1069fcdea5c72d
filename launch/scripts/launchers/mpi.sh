#!/usr/bin/env bash
# mpi.sh - runs inside the container, once for every rank: as srun.sh, with Slurm's PMIx, through which the image's MPI
# learns its rank and its peers. mpi4py and Horovod programs start this way; no mpirun, no ssh.
# tasks-per-node: processes
# cpu-bind: cores
# mpi: yes
# signals: passed-on
set -euo pipefail +o posix

# shellcheck source=inside.sh
source "${KIT_SCRIPTS}/inside.sh"

# shellcheck source=rank.sh
source "${KIT_SCRIPTS}/rank.sh"

# shellcheck source=tasks.sh
source "${KIT_SCRIPTS}/tasks.sh"

# Names here begin with kit_: a job's variable of the same name would not reach the program, since `local` hides it.

launcher::main() {
  inside::begin "${BASH_SOURCE[0]}" "$@"
  inside::choose_program mpi4py horovod torch
  # Each rank has a container, so a user namespace, of its own: Open MPI would try to read across, fail, and say so.
  [[ "${KIT_RUNTIME}" == none ]] || export OMPI_MCA_btl_vader_single_copy_mechanism=none
  # For torch beside MPI; MPI itself asks Slurm.
  tasks::set_ranks
  # Last, so that neither the image nor the lines above win over the job's own variables.
  inside::job_env
  rank::run "${KIT_PROGRAM[@]}"
}

launcher::main "$@"
