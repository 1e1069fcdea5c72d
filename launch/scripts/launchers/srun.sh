#!/usr/bin/env bash
# srun.sh - runs inside the container, once for every rank: each of Slurm's tasks is a rank, without torchrun.
# tasks-per-node: processes
# cpu-bind: cores
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
  inside::choose_program torch
  tasks::set_ranks
  # Last, so that neither the image nor the lines above win over the job's own variables.
  inside::job_env
  rank::run "${KIT_PROGRAM[@]}"
}

launcher::main "$@"
