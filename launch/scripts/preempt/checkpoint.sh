# shellcheck shell=bash
# shellcheck disable=SC2034  # other files of lib/ read what this one sets
# preempt/checkpoint.sh - asks the ranks for a checkpoint while there is time, sees that the job is started again, and
# stops a run that does not get on. See docs/preemption.md.

# The exit code of a rank that has written its checkpoint and wants to go on later: EX_TEMPFAIL of sysexits.h.
readonly KIT_GO_ON=75

# preempt::listen - to Slurm's SIGUSR1, `checkpoint_s` before the time limit; at some sites when the job is preempted, too.
preempt::listen() {
  KIT_ASKED=''
  trap 'KIT_ASKED=yes' USR1
}

# preempt::begin - notes this attempt; ends a run that was started often enough, or that does not get on.
preempt::begin() {
  preempt::follow
  preempt::check_progress
  preempt::progress >>"${KIT_LOG_DIR}/attempts"
}

# preempt::follow - where a site cancels jobs instead of starting them again, this one goes on for another of this run,
# and counts its attempts as its own.
preempt::follow() {
  [[ ! -e "${KIT_LOG_DIR}/attempts" ]] || return 0
  local before
  before="$(cd -- "${KIT_RUN_DIR}/log" && grep -lx -- "${KIT_ID}" [0-9]*/continued-by 2>/dev/null)" || return 0
  before="${before%/*}"
  kit::say "this job goes on for job ${before}"
  cp -- "${KIT_RUN_DIR}/log/${before}/attempts" "${KIT_LOG_DIR}/"
  cp -- "${KIT_RUN_DIR}/log/${before}/progress" "${KIT_LOG_DIR}/" 2>/dev/null || true # it may have said nothing
}

# preempt::progress - what the program last said of how far it is, such as the number of a step; - for nothing.
preempt::progress() {
  local said=''
  read -r said 2>/dev/null <"${KIT_LOG_DIR}/progress" || true
  printf '%s\n' "${said:--}"
}

# preempt::check_progress - ends the run where one more attempt is not worth it.
preempt::check_progress() {
  local -a begun_at=()
  local now problem=''
  [[ ! -e "${KIT_LOG_DIR}/attempts" ]] || mapfile -t begun_at <"${KIT_LOG_DIR}/attempts"
  now="$(preempt::progress)"
  local place="progress: ${now}"
  [[ "${now}" != - ]] || place="the program wrote nothing to \$KIT_PROGRESS"
  if [[ -n "${KIT_MAX_REQUEUES}" ]] && ((${#begun_at[@]} > KIT_MAX_REQUEUES)); then
    problem="this run was started again ${KIT_MAX_REQUEUES} times, and max_requeues allows no more"
  elif ((${#begun_at[@]} >= 2)) && [[ "${begun_at[-1]}" == "${now}" && "${begun_at[-2]}" == "${now}" ]]; then
    problem="this run makes no progress: two attempts in a row ended where they began (${place})"
  fi
  [[ -z "${problem}" ]] || kit::die "${problem}" "see what they did: ${KIT_LOG_DIR}; then start it again: sbatch ${KIT_RUN_DIR}/run_script.sh" no-progress
}

# preempt::asked [SRUN_PID] - whether Slurm wants a checkpoint; then has the ranks write it, and waits for them. Where they
# need too long, or did not even start, the job goes back to the queue without.
preempt::asked() {
  [[ -n "${KIT_ASKED}" ]] || return 1
  KIT_ASKED=''
  # A file for which each rank's shell looks: a signal would meet the container's runtime and torchrun first, and end them.
  : >"${KIT_LOG_DIR}/checkpoint.${KIT_ATTEMPT}"
  event::note checkpoint
  kit::say "asked all ranks for a checkpoint"
  [[ -n "${1:-}" ]] || preempt::go_on "no rank has started"
  local -ri spare_s=$((KIT_CHECKPOINT_S > 60 ? 30 : KIT_CHECKPOINT_S / 2)) begin_s=SECONDS # what Slurm needs to end a job in order
  while [[ -z "${KIT_SIGNAL}" ]] && kill -0 "$1" 2>/dev/null; do
    ((SECONDS - begin_s < KIT_CHECKPOINT_S - spare_s)) || { preempt::too_late && return; } # or it does not return
    sleep 0.5
  done
}

# preempt::too_late - the ranks had time enough for their checkpoint. If one of them has failed, the run ends as it would without.
preempt::too_late() {
  local failed
  failed="$(event::of rank_ended | grep -vE "\"code\": (0|${KIT_GO_ON})[,}]" || true)"
  [[ -z "${failed}" ]] || return 0
  [[ -z "${KIT_LOOPBACK:-}" ]] || event::note node_refused cause no-checkpoint \
    problem "the ranks were asked for a checkpoint, and had not ended when the time for it was over" \
    fix "let the program end with code ${KIT_GO_ON} after SIGUSR1, or give it more time: \`checkpoint_s\`; see docs/preemption.md"
  preempt::go_on "the ranks have not ended"
}

# preempt::stopped CODE - a rank ended with this code.
preempt::stopped() { (($1 != KIT_GO_ON)) || preempt::go_on "all ranks have stopped for a checkpoint"; }

# preempt::go_on WHY - ends this attempt, and sees that there is another.
preempt::go_on() {
  [[ -z "${KIT_SIGNAL}" ]] || ending::after_signal "${KIT_GO_ON}" # cancelled meanwhile
  if [[ -n "${KIT_LOOPBACK:-}" ]]; then
    kit::say "$1; start it again to go on"
    exit "${KIT_GO_ON}"
  fi
  preempt::check_progress
  kit::say "$1, progress: $(preempt::progress); Slurm starts this job again"
  local answer
  KIT_GOES_ON=yes # before it is true: Slurm ends this script soon after
  ending::note_requeue
  if ! answer="$(scontrol requeue "${KIT_ID}" 2>&1)"; then
    KIT_GOES_ON=''
    kit::say "it does not: ${answer}"
    preempt::submit || exit 1
  fi
  exit "${KIT_GO_ON}"
}

# preempt::submit - a job for the same run directory, which begins when this one is gone. Not when the ranks have ended: a
# site that cancels preempted jobs leaves no time for that.
preempt::submit() {
  local next name
  local -a options=(--nodes="${SLURM_JOB_NUM_NODES:-${SLURM_NNODES}}") unset=()
  # Of an array this one alone goes on.
  [[ -z "${SLURM_ARRAY_TASK_ID:-}" ]] || options+=(--array="${SLURM_ARRAY_TASK_ID}")
  # With this job's variables the new one would have its restarts for its own.
  for name in "${!SLURM_@}"; do
    case "${name}" in SLURM_CONF | SLURM_CLUSTERS) ;; *) unset+=(-u "${name}") ;; esac
  done
  if ! next="$(env "${unset[@]}" sbatch --parsable --dependency="afterany:${KIT_ID}" "${options[@]}" --chdir="${KIT_RUN_DIR}" "${KIT_RUN_DIR}/run_script.sh")"; then
    # No kit::die: the ranks may still be writing, and Slurm would end them with this script.
    KIT_OUTCOME=FAILED
    event::note node_refused cause refused problem "the job that should go on is refused" fix "submit it by hand: sbatch ${KIT_RUN_DIR}/run_script.sh"
    kit::error "the job that should go on is refused" "submit it by hand: sbatch ${KIT_RUN_DIR}/run_script.sh"
    return 1
  fi
  next="${next%%;*}${SLURM_ARRAY_TASK_ID:+_${SLURM_ARRAY_TASK_ID}}"
  printf '%s\n' "${next}" >"${KIT_LOG_DIR}/continued-by"
  KIT_GOES_ON=yes
  ending::note_requeue
  kit::say "job ${next} goes on"
}
