# lost.sh - the job goes on without a node that has fallen silent: on a spare, or on fewer nodes where the job says a range.
# only: KIT_LEAST_NODES

KIT_LOST="${KIT_LOST:-}" # what earlier attempts have lost, with commas between: an argument of `run_script.sh again`

# lost::handle SRUN_PID SECONDS NODE... - ends this attempt. The next one starts without these nodes, where there is to be one.
lost::handle() {
  local host
  local -a left
  for host in "${@:3}"; do
    event::note node_lost node "${host}" state silent
    kit::say "${host} is lost: not heard of for $2 s; it is dead, frozen or cut off"
    KIT_LOST+="${KIT_LOST:+,}${host}"
    # Where this node hears no other, it may be the bad one itself.
    ((KIT_SPARES == 0)) || [[ -n "${KIT_ALONE:-}" ]] || bad_nodes::note "${host}" "was lost while a job ran"
  done
  beat::end_ranks "$1"
  mapfile -t left < <(lost::hosts)
  if ((${#left[@]} >= $(lost::needed))) && declare -F restart::consider >/dev/null; then
    restart::consider 143 '' "${*:3}" "${*:3} lost"
    lost::give_up "the ranks are not started again" "raise \`max_restarts\`, or submit it again"
  fi
  lost::give_up
}

# lost::give_up [WHAT FIX] - ends the job, or has it requeued. Without WHAT too few nodes are left.
lost::give_up() {
  # A job that somebody wants to stop does not go on, and has not stopped well.
  [[ "${KIT_REQUEST:-}" == stop ]] || kit::if_there preempt::go_on "${KIT_LOST//,/ }: lost"
  local -r range="${KIT_ELASTIC:+without \`elastic\`, }with \`spares: 1\` or a range such as \`nodes: 2-4\`, and \`max_restarts\`"
  kit::die "${KIT_LOST//,/ }: lost, and ${1:-the job cannot go on with the nodes that are left}" \
    "${2:-${range}, it goes on without such a node; docs/restarts.md}" node-failed
}

# lost::hosts - prints the job's nodes without the lost ones.
lost::hosts() { scontrol show hostnames "${SLURM_JOB_NODELIST}" | grep -vxFf <(printf '%s\n' "${KIT_LOST//,/$'\n'}") || true; }

# lost::may_go_on - whether there is something to go on with where one more node is lost.
lost::may_go_on() {
  ! declare -F preempt::go_on >/dev/null || return 0
  declare -F restart::consider >/dev/null && ((KIT_RESTARTS < KIT_MAX_RESTARTS && $(lost::hosts | wc -l) > $(lost::needed)))
}

# lost::needed - prints with how many nodes the job can go on.
lost::needed() { printf '%d' "$((KIT_SPARES > 0 ? SLURM_JOB_NUM_NODES - KIT_SPARES : KIT_LEAST_NODES))"; }

# lost::leave_out - when the ranks start again: sets KIT_HOSTS and NNODES to what is left. A node that went down meanwhile, Slurm has
# taken out of the job, for good; it may have died before it was ever heard of, been a spare, or have booted again since.
lost::leave_out() {
  local node there
  local -a left
  there="$(squeue --noheader --all --jobs="${KIT_ID}" --format=%N 2>/dev/null)" || there=''
  if [[ -n "${there}" ]]; then
    there=" $(scontrol show hostnames "${there}" | tr '\n' ' ') "
    while read -r node; do
      [[ "${there}" == *" ${node} "* ]] || KIT_LOST+="${KIT_LOST:+,}${node}"
    done < <(lost::hosts)
  fi
  [[ -n "${KIT_LOST}" ]] || return 0
  mapfile -t left < <(lost::hosts)
  ((${#left[@]} >= $(lost::needed))) || lost::give_up
  KIT_HOSTS="$(IFS=, && printf '%s' "${left[*]}")" NNODES="${#left[@]}"
}
