# ray.sh - Ray on the nodes of a job: its head on the first one, and the others, which join it.

source "${KIT_RUN_DIR}/lib/network.sh"
source "${KIT_RUN_DIR}/lib/remove.sh"

# ray::set_variables - for Ray, and for the program and its workers, which inherit them from Ray.
ray::set_variables() {
  local kit_head="${MASTER_ADDR}"
  mapfile -t -s "${NODE_RANK}" -n 1 KIT_OWN <"${KIT_ADDRESSES}"
  KIT_OWN_ADDRESS="${KIT_OWN[0]%% *}"
  if [[ -n "${KIT_LOOPBACK:-}" ]]; then # Ray takes 127.0.0.1 for a mistake, and wants one address for each node
    kit_head=127.0.0.2 KIT_OWN_ADDRESS="127.0.0.$((NODE_RANK + 2))"
  fi
  export NPROC_PER_NODE KIT_GPUS_PER_NODE KIT_PYTHON KIT_OWN_ADDRESS KIT_JOIN_S="${KIT_JOIN_S:-300}"
  RAY_ADDRESS="$(net::endpoint "${kit_head}" "${MASTER_PORT}")"
  KIT_RAY_HEAD="${kit_head}"
  export RAY_ADDRESS KIT_RAY_HEAD RAY_USAGE_STATS_ENABLED=0 RAY_COLOR_PREFIX=0
  # vLLM looks for its node in Ray by an address, which it would guess by the route to the internet: for half an hour where that is
  # another. For a node alone Ray guesses in the same way.
  [[ "${KIT_OWN_ADDRESS}" == 127.0.0.1 ]] || export VLLM_HOST_IP="${KIT_OWN_ADDRESS}"
  export RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S=0 # when Ray is to end, nobody needs it any more
  # Whoever can connect to Ray can run code as this user, unless it asks for a token. Before 2.52 it knows of none.
  export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH="${KIT_LOG_DIR}/.ray-token.${KIT_ATTEMPT}"
}

# ray::start_head - returns when all nodes have joined. From here on the end of this shell is the end of Ray.
ray::start_head() {
  local kit_missing='' kit_waiting
  local -a kit_client=()
  local -r kit_job_path="${PATH}"
  PATH="${KIT_PATH:-${PATH}}" # the job's may lead to nothing but the program
  trap 'ray::end "$?"; rm -f -- "${RAY_AUTH_TOKEN_PATH}"' EXIT
  trap 'exit 143' TERM INT HUP # until the program has them
  (umask 077 && od -An -N 32 -tx1 /dev/urandom | tr -d ' \n' >"${RAY_AUTH_TOKEN_PATH}")
  # With grpc Ray opens another port that is not chosen at random, and without it this option is an error. net::port counts up from
  # the job's id: this port is far from those of the next jobs.
  ! program::has_module "${KIT_PYTHON}" grpc ||
    kit_client=(--ray-client-server-port="$(net::port "$((SLURM_JOB_ID + 2000))" "$((KIT_ATTEMPT - 1))" "${KIT_RAY_HEAD}")")
  ray::start --head --port="${MASTER_PORT}" --include-dashboard=false --disable-usage-stats "${kit_client[@]}"
  "${KIT_PYTHON}" "${KIT_RUN_DIR}/lib/ray_nodes.py" "${KIT_ADDRESSES}" "${KIT_JOIN_S}" >"${KIT_RAY_DIR}/missing" &
  kit_waiting=$!
  while kill -0 "${kit_waiting}" 2>/dev/null && kill -0 "${KIT_RAY}" 2>/dev/null; do sleep 0.1; done
  { kill -0 "${KIT_RAY}" 2>/dev/null && wait "${kit_waiting}"; } ||
    kit::die "the head of Ray did not start" "what Ray says is above, and in ${KIT_ATTEMPT_DIR:-${KIT_LOG_DIR}}/ray0"
  kit_missing="$(kit::first_ten <"${KIT_RAY_DIR}/missing")"
  [[ -z "${kit_missing}" ]] || kit::die "after ${KIT_JOIN_S} s these nodes have not joined Ray: ${kit_missing}" \
    "their logs say more; between the nodes of a job Ray needs all TCP ports to be open"
  PATH="${kit_job_path}"
}

# ray::start OPTION... - starts Ray with the caller's kit_job_path, behind which it must find the bash that starts its workers. Sets KIT_RAY
# to the process that runs as long as Ray does on this node, and KIT_RAY_DIR to Ray's folder. The path of Ray's longest socket has 64
# characters more, and Linux takes 107.
ray::start() {
  local kit_name="ray-${UID}-${SLURM_JOB_ID}" kit_base="${TMPDIR:-/tmp}" kit_path="${kit_job_path}"
  local -i kit_cpus="${SLURM_CPUS_PER_TASK:-${SLURM_CPUS_ON_NODE:-$(nproc)}}"
  local -a kit_more=(--num-gpus="${KIT_GPUS_PER_NODE}")
  [[ -z "${KIT_LOOPBACK:-}" ]] || kit_name+=".${NODE_RANK}" kit_more=() # a rehearsal may have fewer GPUs
  [[ -w "${kit_base}" ]] && ((${#kit_base} + 1 + ${#kit_name} <= 43)) || kit_base=/tmp
  KIT_RAY_DIR="${kit_base}/${kit_name}"
  PATH="${kit_path}" type -P bash >/dev/null || kit_path+=":${PATH}"
  ray::remove_folder || true # of an attempt that was killed
  (umask 077 && mkdir -p -- "${KIT_RAY_DIR}")
  [[ -O "${KIT_RAY_DIR}" && ! -L "${KIT_RAY_DIR}" ]] || kit::die "${KIT_RAY_DIR} belongs to somebody else" "have it removed"
  set -m # a group of its own, which ends with it
  (
    if [[ -n "${KIT_SECRETS:-}" ]]; then # the workers have what the program has
      source "${KIT_RUN_DIR}/lib/secrets.sh"
      secrets::take
    fi
    # A job that asks for no CPUs has one: with fewer CPUs than workers, Ray would wait for more for ever.
    PATH="${kit_path}" exec "${KIT_PYTHON}" -m ray.scripts.scripts start --block --log-style=record "$@" --temp-dir="${KIT_RAY_DIR}" \
      --node-ip-address="${KIT_OWN_ADDRESS}" --node-name="${SLURMD_NODENAME}" --dashboard-agent-listen-port=0 \
      --num-cpus="$((kit_cpus > NPROC_PER_NODE ? kit_cpus : NPROC_PER_NODE))" "${kit_more[@]}"
  ) &
  KIT_RAY=$!
  set +m
}

# ray::end CODE - keeps Ray's own logs where it, or its driver, has failed.
ray::end() {
  local -i kit_tries
  local -r kit_kept="${KIT_ATTEMPT_DIR:-${KIT_LOG_DIR}}/ray${NODE_RANK}"
  trap '' TERM INT HUP # one that comes now would cut this short
  [[ -n "${KIT_RAY:-}" ]] || return 0
  kill -TERM "${KIT_RAY}" 2>/dev/null || true
  kit::await_end "${KIT_RAY}" 2
  kill -KILL -- "-${KIT_RAY}" 2>/dev/null || true
  (($1 == 0 || $1 == 143)) || (
    [[ -z "${KIT_SHARE:-}" ]] || umask 027 # they are for the group, even if the user's umask has closed Ray's own
    mkdir -p -- "${kit_kept}" && cp -- "${KIT_RAY_DIR}"/session_latest/logs/{gcs,ray}* "${kit_kept}" || true
    [[ -z "${KIT_SHARE:-}" ]] || chmod -f g=r,o= -- "${kit_kept}"/*
  ) 2>/dev/null || true
  for ((kit_tries = 0; kit_tries < 40; kit_tries++)); do # what is being killed may still write there, on a busy node for seconds
    ! ray::remove_folder || return 0
    sleep 0.1
  done
}

ray::remove_folder() { [[ ! -e "${KIT_RAY_DIR}" ]] || remove::tree "${KIT_RAY_DIR}" 'ray-[0-9]+-[0-9]+(\.[0-9]+)?' 2>/dev/null; }

# ray::join - on the other nodes: ends with 0 when the head is gone, and with Ray's code where Ray ends before.
ray::join() {
  local -r kit_port="${RAY_ADDRESS##*:}" kit_job_path="${PATH}"
  local -i kit_misses=0 kit_code=0
  PATH="${KIT_PATH:-${PATH}}"
  trap 'ray::end "$?"' EXIT
  trap 'exit 143' TERM INT HUP
  until net::is_listening "${KIT_RAY_HEAD}" "${kit_port}"; do
    ((SECONDS < KIT_JOIN_S)) || kit::die "the head of Ray does not answer at ${RAY_ADDRESS}" "see the first node's log"
    sleep 0.5
  done
  ray::start --address="${RAY_ADDRESS}"
  trap : TERM INT HUP # the program may still need this node, such as for a checkpoint; the end of the head is the end here
  while kill -0 "${KIT_RAY}" 2>/dev/null; do
    sleep 0.5 || true # with `script`, the signal ends it, too
    if net::is_listening "${KIT_RAY_HEAD}" "${kit_port}"; then kit_misses=0; else kit_misses+=1; fi
    ((kit_misses < 3)) || exit 0
  done
  wait "${KIT_RAY}" || kit_code=$?
  exit "$((kit_code > 0 ? kit_code : 1))"
}
