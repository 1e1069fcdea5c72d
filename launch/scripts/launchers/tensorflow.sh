#!/usr/bin/env bash
# tensorflow.sh - runs inside the container, once on every node: starts the program as a worker of TensorFlow's
# MultiWorkerMirroredStrategy, which drives all GPUs of its node and finds the other workers in TF_CONFIG.
# tasks-per-node: 1
# processes-per-node: 1
# addresses: all
# sets: TF_CONFIG
# signals: passed-on
set -euo pipefail +o posix +o noclobber && shopt -u failglob
[[ "${BASH_SOURCE[0]}" == /* ]] || exec bash "${PWD}/${BASH_SOURCE[0]}" "$@" # by hand
readonly KIT_RUN_DIR="${BASH_SOURCE[0]%/*}"

source "${KIT_RUN_DIR}/lib/container.sh"
source "${KIT_RUN_DIR}/lib/signals.sh"

launcher::main() {
  container::begin "$@"
  program::choose tensorflow
  unset TF_CONFIG # an exported one would keep tools from starting once it is too long
  TF_CONFIG="$(launcher::tf_config)"
  launcher::check_length
  export TF_CONFIG
  container::job_env
  # shellcheck disable=SC2034  # lib/rank.sh reads them
  RANK="${NODE_RANK}" LOCAL_RANK=0
  rank::run "${KIT_PROGRAM[@]}"
}

# launcher::tf_config - https://www.tensorflow.org/guide/distributed_training#TF_CONFIG
launcher::tf_config() {
  local -a kit_hosts kit_workers=()
  local -i kit_i
  local kit_host kit_port kit_all
  mapfile -t kit_hosts <"${KIT_ADDRESSES}"
  for ((kit_i = 0; kit_i < NNODES; kit_i++)); do
    kit_host="${kit_hosts[kit_i]%% *}" kit_port="${MASTER_PORT}"
    [[ -z "${KIT_LOOPBACK:-}" ]] || kit_port=$((MASTER_PORT + kit_i)) # under `kit run` all have one address
    [[ "${kit_host}" != *:* ]] || kit_host="[${kit_host}]"            # as net::endpoint, without a process for each node
    kit_workers+=("${kit_host}:${kit_port}")
  done
  printf -v kit_all ', "%s"' "${kit_workers[@]}"
  printf '{"cluster": {"worker": [%s]}, "task": {"type": "worker", "index": %d}}' "${kit_all#, }" "${NODE_RANK}"
}

# launcher::check_length - Linux lets no variable be longer than 32 pages, with its name and the zero at its end.
launcher::check_length() {
  local -ri kit_longest=$((32 * $(getconf PAGE_SIZE 2>/dev/null || echo 4096) - 11))
  ((${#TF_CONFIG} <= kit_longest)) ||
    kit::die "TF_CONFIG for ${NNODES} nodes would have ${#TF_CONFIG} characters, and Linux takes ${kit_longest} in one variable" \
      "TensorFlow's own way ends at 5,000 to 7,000 nodes: take fewer"
}

launcher::main "$@"
