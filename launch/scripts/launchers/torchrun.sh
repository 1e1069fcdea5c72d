#!/usr/bin/env bash
# torchrun.sh - runs inside the container, once on every node: starts torchrun, which starts the ranks.
# tasks-per-node: 1
# elastic: yes
#
# The arguments NAME=VALUE are what run_script.sh knows of this node. By hand, on one machine:
#   bash torchrun.sh NNODES=1 NODE_RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=61000 KIT_LOG_DIR="$PWD/log"
set -euo pipefail +o posix +o noclobber && shopt -u failglob
[[ "${BASH_SOURCE[0]}" == /* ]] || exec bash "${PWD}/${BASH_SOURCE[0]}" "$@" # by hand
readonly KIT_RUN_DIR="${BASH_SOURCE[0]%/*}"

launcher::main() {
  container::begin "$@"
  program::find_python torch
  [[ -n "${KIT_HAS}" ]] || program::lack torch
  program::choose torch
  [[ -d "${KIT_LOG_DIR}/.torchrun" ]] || (umask 077 && mkdir -p -- "${KIT_LOG_DIR}/.torchrun")
  launcher::choose_rendezvous
  launcher::choose_binding
  # torchrun reads its program's arguments as templates, for ${local_rank}, and would make $ of every $$.
  set -- "${KIT_PYTHON}" -m torch.distributed.run \
    "${KIT_RENDEZVOUS[@]}" --nproc-per-node "${NPROC_PER_NODE}" --rdzv-id "${KIT_RENDEZVOUS_ID:-0}" \
    --max-restarts "${KIT_OWN_RESTARTS}" "${KIT_BINDING[@]}" --log-dir "${KIT_LOG_DIR}/.torchrun" \
    --no-python "${BASH}" "${KIT_RUN_DIR//\$/\$\$}/torchrun.sh" --rank "${PWD//\$/\$\$}" "${KIT_PROGRAM[@]//\$/\$\$}"
  container::job_env
  exec "$@"
}

# launcher::choose_rendezvous - never --standalone, with which every node would form a world of its own.
launcher::choose_rendezvous() {
  KIT_OWN_RESTARTS=0
  # A node whose `setup` copies data may come late: torchrun itself would give it 15 minutes.
  local -ri kit_late_s=$((KIT_READY_TIMEOUT_S > 900 ? KIT_READY_TIMEOUT_S : 900))
  # Static: ranks follow the node ranks, and a port in use ends the job at once.
  KIT_RENDEZVOUS=(--nnodes "${NNODES}" --node-rank "${NODE_RANK}" --master-addr "${MASTER_ADDR}" --master-port "${MASTER_PORT}")
  [[ ! -e "${KIT_RUN_DIR}/setup.sh" ]] || KIT_RENDEZVOUS+=(--rdzv-conf "timeout=${kit_late_s}")
  if [[ -n "${KIT_ELASTIC}" ]]; then
    source "${KIT_RUN_DIR}/lib/c10d.sh"
    c10d::choose_rendezvous "${kit_late_s}"
  fi
}

# launcher::choose_binding - sets KIT_BINDING. torchrun can start each rank on the CPUs beside its GPU, and ends where it cannot:
# without numactl, without a GPU for each rank, or with a GPU beside which the job has no CPU. See docs/affinity.md.
launcher::choose_binding() {
  local kit_cpus
  KIT_BINDING=()
  [[ -e /sys/devices/system/node/node1 && -e /dev/nvidiactl ]] && (container::job_env && command -v numactl >/dev/null) || return 0 # as torchrun will look for it
  ((KIT_GPUS_PER_NODE >= NPROC_PER_NODE)) || return 0
  kit_cpus="$(getconf _NPROCESSORS_ONLN 2>/dev/null)" || return 0
  [[ "$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)" == "${kit_cpus}" ]] || return 0
  ! program::has_file "${KIT_PYTHON}" torch/numa/binding.py || KIT_BINDING=(--numa-binding node) # since torch 2.9
}

if [[ "${1:-}" == --rank ]]; then # by torchrun
  source "${KIT_RUN_DIR}/lib/group_signals.sh"
  cd -- "$2" # the user's start-up file (BASH_ENV) may have gone elsewhere
  rank::run "${@:3}"
else
  source "${KIT_RUN_DIR}/lib/container.sh"
  launcher::main "$@"
fi
