#!/usr/bin/env bash
# spawn.sh - runs inside the container, once on every node: starts the program, which starts the ranks of its node
# itself, as with torch.multiprocessing.spawn. It finds NNODES, NODE_RANK, NPROC_PER_NODE, MASTER_ADDR and MASTER_PORT.
# tasks-per-node: 1
# signals: passed-on
set -euo pipefail +o posix +o noclobber && shopt -u failglob
[[ "${BASH_SOURCE[0]}" == /* ]] || exec bash "${PWD}/${BASH_SOURCE[0]}" "$@" # by hand
readonly KIT_RUN_DIR="${BASH_SOURCE[0]%/*}"

source "${KIT_RUN_DIR}/lib/container.sh"
source "${KIT_RUN_DIR}/lib/signals.sh"

container::begin "$@"
program::choose torch
export NPROC_PER_NODE
container::job_env
# The ranks are the program's own affair: what is logged and noted here is one process for each node.
# shellcheck disable=SC2034  # lib/rank.sh reads them
RANK="${NODE_RANK}" LOCAL_RANK=0 KIT_LOGGED=node
rank::run "${KIT_PROGRAM[@]}"
