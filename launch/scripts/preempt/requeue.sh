# preempt/requeue.sh - for programs that know nothing of signals: sees that the job is started again before its time is up, and
# sends the ranks nothing. See docs/preemption.md.

source "${KIT_RUN_DIR}/lib/preempt.sh"

# preempt::act [SRUN_PID] - the time limit is near, and the job goes back to the queue; or a person wants the job to stop. A
# checkpoint that is being written would be cut off: where there is time, it waits until two looks at the files find the same. What
# the program last said of its progress says nothing of that.
preempt::act() {
  [[ -n "${1:-}" ]] || preempt::go_on "no rank has started"
  local -ri begin_s=SECONDS
  local before='' now=- why="the time limit is near"
  [[ "${KIT_REQUEST}" != stop ]] || why="between two checkpoints"
  while [[ -z "${KIT_SIGNAL}" ]] && kill -0 "$1" 2>/dev/null; do
    before="${now}" now=''
    [[ -z "${KIT_CHECKPOINT_PATH:-}" ]] || now="$(again::newest)"
    if [[ "${now}" == "${before}" || -z "${KIT_CHECKPOINT_PATH:-}" ]] || ((SECONDS - begin_s >= KIT_PATIENCE_S)); then
      ! preempt::has_failed || return 0
      preempt::go_on "${why}"
    fi
    sleep 5
  done
}
