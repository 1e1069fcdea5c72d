# exec.sh - commands beside the ranks, in the job's container: what `kit exec` runs, and the shell of `kit shell`.

# exec::main VERB WORD... - what run_script.sh was started for, instead of the ranks.
exec::main() {
  case "$1" in
    attach) exec::attach "${@:2}" ;;    # on any machine where srun is
    exec) exec::become "${@:2}" ;;      # on a node, in that step
    *)                                  # salloc starts it
      exec {KIT_TERMINAL}<&0 </dev/null # what is typed meanwhile is for the shell
      trap 'exit 130' INT
      job::main "$@"
      ;;
  esac
}

# exec::shell VERB NODE... - on the machine where salloc runs this, when all nodes are ready: becomes a shell, or Jupyter,
# on one of the job's nodes, by its name or its number; more words are for jupyter.sh.
exec::shell() {
  local -r verb="$1"
  local -a hosts command=(bash) facts=("${KIT_FACTS[@]}")
  local host address
  mapfile -t hosts < <(job::hosts)
  KIT_HOSTS="$(IFS=, && printf '%s' "${hosts[*]}")"
  host="$(exec::host "$2" "${hosts[@]}")" || exit 1 # -e does not reach into $(...)
  if [[ "${verb}" == jupyter ]]; then
    address="$(net::address "${host}")" || exit 1
    command=(bash "${KIT_RUN_DIR}/jupyter.sh" "${address}" "${@:3}")
  else
    exec::explain "${host}" "${#hosts[@]}"
    facts+=("PS1=(kit ${KIT_ID} ${host}) \\w \\$ ")
  fi
  event::note ranks_started
  trap - EXIT # nothing of this script is left to note the end
  [[ -z "${KIT_SHARE:-}" ]] || share::leave
  exec <&"${KIT_TERMINAL}" {KIT_TERMINAL}<&-
  exec::attach "${host}" "${facts[@]}" "KIT_HOSTS=${KIT_HOSTS}" -- "${command[@]}"
}

# exec::host WORD HOST... - prints the host of that name or number.
exec::host() {
  local -i number=0
  local host
  for host in "${@:2}"; do
    [[ "$1" != "${host}" && "$1" != "${number}" ]] || { printf '%s\n' "${host}" && return; }
    number+=1
  done
  kit::die "the job has no node $1" "name one of: ${*:2}; or its number, from 0"
}

# exec::explain HOST COUNT - how to start by hand what the job file says, unless it says nothing: then the command is `true`.
exec::explain() {
  kit::say "a shell on ${1}; the job ends with it"
  [[ "${KIT_COMMAND[*]}" != true && "${KIT_TASKS_PER_NODE}" == 1 ]] || return 0
  if (($2 == 1)); then
    kit::say "to start the job's command: bash \"\${KIT_RUN_DIR}/${KIT_LAUNCHER}.sh\""
  else
    kit::say "to start the job's command on all nodes, in another terminal: kit exec ${KIT_ID} --node all -- bash $(printf '%q' "${KIT_RUN_DIR}/${KIT_LAUNCHER}.sh")"
  fi
}

# exec::attach HOST[,HOST...] NAME=VALUE... -- COMMAND... - a step of the job SLURM_JOB_ID on those nodes, which shares what the
# ranks have. On any machine where srun is. What a command on several nodes says comes with the node's name in front.
exec::attach() {
  environment::forget_shell
  local -a hosts facts=()
  IFS=, read -ra hosts <<<"$1"
  shift
  while [[ "$1" != -- ]]; do
    export "${1?}"
    facts+=("$1")
    shift
  done
  local binds
  binds="$(step::binds)"
  local -a step=(
    srun --jobid="${SLURM_JOB_ID}" --overlap
    --nodelist="$(IFS=, && printf '%s' "${hosts[*]}")" --nodes="${#hosts[@]}" --ntasks="${#hosts[@]}" --ntasks-per-node=1
    ${binds:+--cpu-bind=none} --mpi=none --export=ALL --kill-on-bad-exit=0 --wait=0
  )
  exec::forget_slurm
  stage::use
  if declare -F runtime::srun_args >/dev/null; then
    # Devices are those of the nodes: this machine may have none.
    # shellcheck disable=SC2034  # the runtime's file reads it
    local -a KIT_ON_NODE=("${step[@]}" --quiet)
    [[ -z "${KIT_CACHE:-}" ]] || cache::mount
    runtime::srun_args </dev/null
    step+=("${KIT_SRUN_ARGS[@]}")
  fi
  if ((${#hosts[@]} == 1)); then
    [[ ! -t 0 || ! -t 1 ]] || step+=(--pty)
    exec "${step[@]}" bash "${KIT_RUN_DIR}/run_script.sh" exec "${facts[@]}" "$@"
  fi
  "${step[@]}" --label bash "${KIT_RUN_DIR}/run_script.sh" exec "${facts[@]}" "$@" 2>&1 | exec::name_nodes "${hosts[@]}"
}

# The step's shape is said in full; the allocation's variables would add theirs, such as one CPU for each task.
exec::forget_slurm() {
  local name
  for name in "${!SLURM_@}" "${!SRUN_@}"; do
    case "${name}" in
      SLURM_CONF | SLURM_CLUSTERS | SLURM_JWT | SLURM_ARRAY_*) ;; # env.sh knows an array's task by its number
      *) [[ -n "${KIT_LOOPBACK:-}" ]] || unset "${name}" ;;       # the stand-in for srun has nobody to ask
    esac
  done
}

# exec::name_nodes HOST... - puts names for srun's numbers of tasks.
exec::name_nodes() {
  local -a hosts=("$@")
  local line number
  while IFS= read -r line || [[ -n "${line}" ]]; do
    number="${line%%:*}"
    if [[ "${line}" == *:* && "${number// /}" =~ ^[0-9]+$ ]]; then
      printf '[%s] %s\n' "${hosts[number]}" "${line#*: }"
    else
      printf '%s\n' "${line}" # srun's own
    fi
  done
}

# exec::become NAME=VALUE... -- COMMAND... - on a node, in the step: becomes the command inside the container.
exec::become() {
  while [[ "$1" != -- ]]; do
    export "${1?}"
    shift
  done
  local -a hosts
  local -i rank=0
  IFS=, read -ra hosts <<<"${KIT_HOSTS}"
  while ((rank < ${#hosts[@]} - 1)) && [[ "${hosts[rank]}" != "$(kit::node)" ]]; do rank+=1; done
  export NODE_RANK="${rank}" KIT_BESIDE=yes
  # By the first rank's number the engines name the node's container.
  [[ -z "${KIT_LOOPBACK:-}" ]] || export SLURM_PROCID=$((rank * KIT_TASKS_PER_NODE))
  stage::use
  node::collect_facts
  local become=runtime::exec
  # Most runtimes start one more container like that of the ranks; some enter the very same.
  ! declare -F runtime::enter >/dev/null || become=runtime::enter
  "${become}" bash "${KIT_RUN_DIR}/${KIT_LAUNCHER}.sh" "${KIT_NODE_FACTS[@]}" "$@"
}
