# exec.sh - commands in the job's container: beside the ranks, what `kit exec` runs; in their place, the shell or Jupyter of `kit shell`.

source "${KIT_RUN_DIR}/lib/steps.sh"

# exec::attach HOST[,HOST...] NAME=VALUE... -- COMMAND... - a step of the job SLURM_JOB_ID on those nodes, which shares what the
# ranks have. On any machine where srun is. What a command on several nodes says comes with the node's name in front.
exec::attach() {
  environment::forget_shell
  local fact
  local -a hosts step
  kit::split hosts , "$1"
  shift
  for fact in "$@"; do
    [[ "${fact}" != -- ]] || break
    export "${fact?}"
  done
  step::beside "${hosts[@]}"
  step+=(--jobid="${SLURM_JOB_ID}")
  exec::forget_slurm
  stage::use
  if declare -F runtime::srun_args >/dev/null; then
    # Devices are those of the nodes: this machine may have none.
    local -a KIT_ON_NODE=("${step[@]}" --quiet)
    [[ -z "${KIT_CACHE:-}" ]] || cache::mount
    runtime::srun_args </dev/null
    step+=("${KIT_SRUN_ARGS[@]}")
  fi
  if ((${#hosts[@]} == 1)); then
    [[ ! -t 0 || ! -t 1 ]] || step+=(--pty)
    exec "${step[@]}" bash "${KIT_RUN_DIR}/run_script.sh" exec "$@"
  fi
  "${step[@]}" --label bash "${KIT_RUN_DIR}/run_script.sh" exec KIT_TO_NAME=yes "$@" 2>&1 | exec::name_nodes "${hosts[@]}"
}

# The step's shape is said in full; the allocation's variables would add theirs, such as one CPU for each task.
exec::forget_slurm() {
  local name
  for name in "${!SLURM_@}" "${!SRUN_@}"; do
    case "${name}" in
      SLURM_ARRAY_*) ;; # env.sh knows an array's task by its number
      # The stand-in for srun has nobody to ask.
      *) [[ -n "${KIT_LOOPBACK:-}" ]] || environment::finds_slurm "${name}" || unset "${name}" ;;
    esac
  done
}

# exec::name_nodes HOST... - puts names for srun's numbers of tasks. Each task first says which node it is on: Slurm 26.05 numbers tasks by the
# network's topology. What srun or a plug-in says for a task before that has the name of the host in its place.
exec::name_nodes() {
  local -a hosts=("$@") are_known=()
  local line number
  while IFS= read -r line || [[ -n "${line}" ]]; do
    number="${line%%:*}"
    if [[ "${line}" == *:* && "${number// /}" =~ ^[0-9]+$ ]]; then
      if [[ -z "${are_known[number]:-}" && "${line#*: }" == KIT_NODE=* ]]; then
        are_known[number]=yes hosts[number]="${line#*: KIT_NODE=}"
      else
        printf '[%s] %s\n' "${hosts[number]}" "${line#*: }"
      fi
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
  local own
  own="$(kit::node)" # once: a process for each of 4,000 nodes takes seconds
  [[ -z "${KIT_TO_NAME:-}" ]] || printf 'KIT_NODE=%s\n' "${own}"
  unset KIT_TO_NAME
  kit::split hosts , "${KIT_HOSTS}"
  while ((rank < ${#hosts[@]} - 1)) && [[ "${hosts[rank]}" != "${own}" ]]; do rank+=1; done
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
