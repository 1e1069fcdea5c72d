#!/usr/bin/env bash
# torchrun.sh - runs inside the container, once on every node: starts torchrun, which starts the ranks.
# tasks-per-node: 1
#
# The arguments NAME=VALUE are what run_script.sh knows of this node. By hand, on one machine:
#   bash torchrun.sh NNODES=1 NODE_RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=61000 KIT_LOG_DIR="$PWD/log"
set -euo pipefail

# shellcheck source=inside.sh
source "${KIT_SCRIPTS}/inside.sh"

# Names here begin with kit_: a job's variable of the same name would not reach the program, since `local` hides it.

launcher::main() {
  KIT_RUN_DIR="${BASH_SOURCE[0]%/*}"
  [[ "${KIT_RUN_DIR}" == /* ]] || KIT_RUN_DIR="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)" # by hand
  # shellcheck source=/dev/null
  source "${KIT_RUN_DIR}/env.sh"
  inside::enter "$@"
  inside::find_python
  [[ -d "${KIT_LOG_DIR}/.torchrun" ]] || mkdir -p -- "${KIT_LOG_DIR}/.torchrun"
  export KIT_RUN_DIR

  # A Python program as torchrun itself would start it; anything else as it is.
  local -a kit_program=("${KIT_COMMAND[@]}")
  case "${kit_program[0]}" in
    *.py) kit_program=("${KIT_PYTHON}" -u "${kit_program[@]}") ;;
    python | python3) kit_program[0]="${KIT_PYTHON}" ;;
  esac
  # torchrun reads its program's arguments as templates, for ${local_rank}, and would make $ of every $$.
  kit_program=("${kit_program[@]//\$/\$\$}")

  # Static rendezvous: ranks follow the node ranks, and a port in use ends the job at once. Never --standalone,
  # with which every node would form a world of its own.
  set -- "${KIT_PYTHON}" -m torch.distributed.run \
    --nnodes "${NNODES}" --nproc-per-node "${NPROC_PER_NODE}" --node-rank "${NODE_RANK}" \
    --master-addr "${MASTER_ADDR}" --master-port "${MASTER_PORT}" --rdzv-id "${KIT_RENDEZVOUS_ID:-0}" \
    --max-restarts 0 --log-dir "${KIT_LOG_DIR}/.torchrun" \
    --no-python "${BASH}" "${KIT_RUN_DIR}/torchrun.sh" --rank "${kit_program[@]}"
  # Last, so that neither the image nor the lines above win over the job's own variables.
  inside::job_env
  exec "$@"
}

# launcher::rank PROGRAM... - one rank, as torchrun's child: gives it a log of its own, and notes its exit code, which
# torchrun would turn into 1.
launcher::rank() {
  local -r kit_file="${KIT_LOG_DIR}/rank${RANK}"
  # Both streams in one file, in order; and line by line, so that ranks do not cut into each other, to the node's log.
  exec {kit_console}>&1 > >(
    trap '' TERM INT HUP USR1 USR2 # it ends with the program's output, not with a signal to the program
    tee -a -- "${kit_file}.out" | launcher::prefix "[rank${RANK}] "
  ) 2>&1
  local -r kit_logger=$!

  # torchrun signals the whole group: the program acts on it, and this shell stays to see its end.
  local kit_stopped='' kit_code=0
  trap 'kit_stopped=1' TERM INT HUP
  trap : USR1 USR2
  "$@" || kit_code=$?
  # A rank that was told to stop did not cause the failure.
  if ((kit_code != 0)) && [[ -z "${kit_stopped}" ]]; then
    printf '%d %s %d\n' "${kit_code}" "${SLURMD_NODENAME:-${HOSTNAME}}" "${LOCAL_RANK}" >"${kit_file}.failed"
  fi

  # Let the last lines through; but a process that the program left behind may hold its output open for ever.
  exec >&"${kit_console}" 2>&1
  local -i kit_waited
  for ((kit_waited = 0; kit_waited < 40; kit_waited++)); do
    kill -0 "${kit_logger}" 2>/dev/null || break
    sleep 0.05
  done
  exit "${kit_code}"
}

# sed -u would read byte by byte; stdbuf, where there is one, makes only its output go line by line.
launcher::prefix() {
  local -a kit_sed=(sed -u)
  ! command -v stdbuf >/dev/null || kit_sed=(stdbuf -oL sed)
  "${kit_sed[@]}" "s/^/$1/"
}

if [[ "${1:-}" == --rank ]]; then
  launcher::rank "${@:2}"
else
  launcher::main "$@"
fi
