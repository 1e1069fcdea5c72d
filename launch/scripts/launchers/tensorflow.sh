#!/usr/bin/env bash
# tensorflow.sh - runs inside the container, once on every node: starts the program as a worker of TensorFlow's
# MultiWorkerMirroredStrategy, which drives all GPUs of its node and finds the other workers in TF_CONFIG.
# tasks-per-node: 1
# processes-per-node: 1
# addresses: all
# signals: passed-on
set -euo pipefail

# shellcheck source=inside.sh
source "${KIT_SCRIPTS}/inside.sh"

# shellcheck source=rank.sh
source "${KIT_SCRIPTS}/rank.sh"

# Names here begin with kit_: a job's variable of the same name would not reach the program, since `local` hides it.

launcher::main() {
  inside::begin "${BASH_SOURCE[0]}" "$@"
  inside::choose_program tensorflow
  TF_CONFIG="$(launcher::tf_config)"
  export TF_CONFIG
  # Last, so that neither the image nor the lines above win over the job's own variables.
  inside::job_env
  RANK="${NODE_RANK}" LOCAL_RANK=0
  rank::run "${KIT_PROGRAM[@]}"
}

# launcher::tf_config - https://www.tensorflow.org/guide/distributed_training#TF_CONFIG
launcher::tf_config() {
  local -a kit_hosts
  local -i kit_i
  local kit_workers='' kit_port
  mapfile -t kit_hosts <"${KIT_ADDRESSES}"
  for ((kit_i = 0; kit_i < NNODES; kit_i++)); do
    kit_port="${MASTER_PORT}"
    [[ -z "${KIT_LOOPBACK:-}" ]] || kit_port=$((MASTER_PORT + kit_i)) # under `kit run` all have one address
    kit_workers+="${kit_workers:+, }\"${kit_hosts[kit_i]}:${kit_port}\""
  done
  printf '{"cluster": {"worker": [%s]}, "task": {"type": "worker", "index": %d}}' "${kit_workers}" "${NODE_RANK}"
}

launcher::main "$@"
