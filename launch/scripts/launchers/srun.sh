#!/usr/bin/env bash
# srun.sh - runs inside the container, once for every rank: each of Slurm's tasks is a rank, without torchrun.
# tasks-per-node: processes
# cpu-bind: cores
# signals: passed-on
set -euo pipefail +o posix +o noclobber && shopt -u failglob
[[ "${BASH_SOURCE[0]}" == /* ]] || exec bash "${PWD}/${BASH_SOURCE[0]}" "$@" # by hand
readonly KIT_RUN_DIR="${BASH_SOURCE[0]%/*}"

source "${KIT_RUN_DIR}/lib/container.sh"
source "${KIT_RUN_DIR}/lib/signals.sh"
source "${KIT_RUN_DIR}/lib/tasks.sh"

container::begin "$@"
program::choose torch
tasks::set_ranks
container::job_env
rank::run "${KIT_PROGRAM[@]}"
