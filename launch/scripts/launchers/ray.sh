#!/usr/bin/env bash
# ray.sh - runs inside the container, once on every node: starts Ray on all nodes, with its head on the first one, and there the
# program, as Ray's driver. It finds RAY_ADDRESS, NNODES and NPROC_PER_NODE. When it ends, Ray ends on all nodes.
# tasks-per-node: 1
# addresses: all
# sets: RAY_ADDRESS
# signals: passed-on
set -euo pipefail +o posix +o noclobber && shopt -u failglob
[[ "${BASH_SOURCE[0]}" == /* ]] || exec bash "${PWD}/${BASH_SOURCE[0]}" "$@" # by hand
readonly KIT_RUN_DIR="${BASH_SOURCE[0]%/*}"

source "${KIT_RUN_DIR}/lib/container.sh"
source "${KIT_RUN_DIR}/lib/signals.sh"
source "${KIT_RUN_DIR}/lib/ray.sh"

launcher::main() {
  container::begin "$@"
  program::find_python ray
  program::choose ray
  ray::set_variables
  container::job_env
  # With the job's PYTHONPATH, too.
  [[ -n "${KIT_HAS}" ]] || program::has_module "${KIT_PYTHON:-python3}" ray || program::lack ray
  if ((NODE_RANK == 0)); then
    ray::start_head
  else # under rank::run as well: so it has a log, and its end is noted
    KIT_PROGRAM=("${BASH}" "${KIT_RUN_DIR}/ray.sh" --join)
  fi
  # The ranks are Ray's affair: what is logged and noted here is one process for each node.
  # shellcheck disable=SC2034  # lib/rank.sh reads them
  RANK="${NODE_RANK}" LOCAL_RANK=0 KIT_LOGGED=node
  rank::run "${KIT_PROGRAM[@]}"
}

if [[ "${1:-}" == --join ]]; then
  trap : USR1 USR2 # these are for the program
  ray::join
else
  launcher::main "$@"
fi
