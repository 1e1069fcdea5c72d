# preempt/checkpoint.sh - asks the ranks for a checkpoint while there is time, and sees that the job is started again. See
# docs/preemption.md.

source "${KIT_RUN_DIR}/lib/preempt.sh"

# preempt::act [SRUN_PID] - a checkpoint is wanted: has the ranks write it. Where Slurm wants it, waits for them; where they need too
# long, or did not even start, the job goes back to the queue without.
preempt::act() {
  # A file for which each rank's shell looks: a signal would meet the container's runtime and torchrun first, and end them. Each
  # line is a request; where the disk is full, the file alone is the first one.
  printf '%s\n' "${KIT_REQUEST:-limit}" >>"${KIT_LOG_DIR}/checkpoint.${KIT_ATTEMPT}" || true
  event::note checkpoint ${KIT_ASKED_BY:+by "${KIT_ASKED_BY}"}
  kit::say "asked all ranks for a checkpoint${KIT_ASKED_BY:+, as ${KIT_ASKED_BY} asked}"
  [[ -n "${1:-}" ]] || preempt::go_on "no rank has started"
  [[ -z "${KIT_REQUEST}" ]] || return 0 # a person is in no hurry
  local -ri begin_s=SECONDS
  while [[ -z "${KIT_SIGNAL}" ]] && kill -0 "$1" 2>/dev/null; do
    ((SECONDS - begin_s < KIT_PATIENCE_S)) || { preempt::too_late && return; } # or it does not return
    sleep 0.5
  done
}

# preempt::too_late - the ranks had time enough for their checkpoint. If one of them has failed, the run ends as it would without.
preempt::too_late() {
  ! preempt::has_failed || return 0
  [[ -z "${KIT_LOOPBACK:-}" ]] || event::note node_refused cause no-checkpoint \
    problem "the ranks were asked for a checkpoint, and had not ended when the time for it was over" \
    fix "let the program end with code ${KIT_GO_ON} after SIGUSR1, or give it more time: \`checkpoint_s\`; see docs/preemption.md"
  [[ -z "$(event::of not_asked)" ]] || preempt::go_on "the ranks have not ended, and do not handle SIGUSR1"
  preempt::go_on "the ranks have not ended"
}
