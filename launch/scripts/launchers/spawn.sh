#!/usr/bin/env bash
# spawn.sh - runs inside the container, once on every node: starts the program, which starts the ranks of its node
# itself, as with torch.multiprocessing.spawn. It finds NNODES, NODE_RANK, NPROC_PER_NODE, MASTER_ADDR and MASTER_PORT.
# tasks-per-node: 1
# signals: passed-on
set -euo pipefail +o posix

# shellcheck source=inside.sh
source "${KIT_SCRIPTS}/inside.sh"

# shellcheck source=rank.sh
source "${KIT_SCRIPTS}/rank.sh"

# Names here begin with kit_: a job's variable of the same name would not reach the program, since `local` hides it.

launcher::main() {
  inside::begin "${BASH_SOURCE[0]}" "$@"
  inside::choose_program torch
  export NPROC_PER_NODE
  # Last, so that neither the image nor the lines above win over the job's own variables.
  inside::job_env
  # The ranks are the program's own affair: what is logged and noted here is one process for each node.
  RANK="${NODE_RANK}" LOCAL_RANK=0 KIT_LOGGED=node
  rank::run "${KIT_PROGRAM[@]}"
}

launcher::main "$@"
