# preempt.sh - the attempts of a run that is started again: how many there may be, whether it gets on, and who starts the
# next one. What the kinds of `on_preempt` in preempt/ share; see docs/preemption.md.

source "${KIT_RUN_DIR}/lib/again.sh"

# The exit code of a rank that has written its checkpoint and wants to go on later: EX_TEMPFAIL of sysexits.h.
readonly KIT_GO_ON=75
KIT_REQUEUE_S="${KIT_REQUEUE_S:-600}" # how long a slurmctld that does not answer is asked to take the job back

# preempt::listen - to Slurm's SIGUSR1, `checkpoint_s` before the time limit; at some sites when the job is preempted, too. And to
# SIGURG, by which kit says that a person has asked: it does nothing to a script that does not listen yet.
preempt::listen() {
  KIT_REQUEST='' KIT_ASKED_BY=''
  KIT_PATIENCE_S=$((KIT_CHECKPOINT_S - (KIT_CHECKPOINT_S > 60 ? 30 : KIT_CHECKPOINT_S / 2))) # Slurm needs the rest to end a job in order
  trap 'KIT_ASKED=yes KIT_NEAR_END=yes' USR1
  KIT_ASKED=yes # perhaps before this: then there is the file, or KIT_NEAR_END
  trap 'KIT_ASKED=yes' URG
}

# preempt::asked [SRUN_PID] - whether something was asked for; then does what is wanted, as the kind of `on_preempt` does it.
preempt::asked() {
  [[ -n "${KIT_ASKED}" ]] || return 1
  KIT_ASKED=''
  if preempt::read_request "$@"; then
    preempt::act "$@"
  else
    [[ -n "${1:-}" ]] # nothing is wanted: the ranks go on, or start
  fi
}

# preempt::read_request [SRUN_PID] - whether something is asked for: by Slurm, which wants the nodes back, or by a person, in a file.
# Sets KIT_REQUEST to "checkpoint" where the ranks are to go on afterwards, and to "stop" where they are not. Before the ranks have
# started there is nothing to save, and with `on_preempt: requeue` the program cannot be asked.
preempt::read_request() {
  local -r file="${KIT_LOG_DIR}/request"
  local request='' before="${KIT_ASKED_BY}"
  ending::refresh "${KIT_LOG_DIR}"
  [[ ! -f "${file}" ]] || read -r request <"${file}" || true
  rm -f -- "${file}"
  [[ "${KIT_REQUEST}" == stop ]] || KIT_ASKED_BY='' # another user, by name
  [[ -z "${KIT_SHARE:-}" ]] || share::read_requests
  [[ "${request}" != stop ]] || KIT_REQUEST=stop
  [[ "${KIT_REQUEST}" != stop ]] || return 0
  # A file that is no request changes nothing: what was asked for before still holds.
  [[ -n "${request}${KIT_NEAR_END:-}" ]] || { KIT_ASKED_BY="${before}" && return 1; }
  KIT_REQUEST=''
  [[ -z "${KIT_NEAR_END:-}" ]] || return 0
  [[ "${request}" == checkpoint && "${KIT_ON_PREEMPT}" == checkpoint && -n "${1:-}" ]] && KIT_REQUEST=checkpoint
}

# preempt::begin - notes this attempt; ends a run that was started often enough, or that does not get on. What again.sh starts
# within a job, or a person in an allocation, is no attempt of Slurm's.
preempt::begin() {
  [[ -z "${KIT_IS_AGAIN:-}${KIT_BY_HAND:-}" ]] || return 0
  preempt::follow
  preempt::check_progress
  # Without it, max_requeues would not hold.
  printf '%s\n' "${KIT_REACHED}" >>"${KIT_LOG_DIR}/attempts" ||
    kit::die "cannot write to ${KIT_LOG_DIR}" "see the line above; free there: df -h ${KIT_LOG_DIR}; then start it again: $(kit::start_again)"
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

# preempt::check_progress - ends the run where one more attempt is not worth it. Sets KIT_REACHED to how far it is.
preempt::check_progress() {
  local -a begun_at=()
  local problem='' place
  [[ ! -e "${KIT_LOG_DIR}/attempts" ]] || mapfile -t begun_at <"${KIT_LOG_DIR}/attempts"
  KIT_REACHED="$(again::progress)"
  place="progress: ${KIT_REACHED}"
  [[ "${KIT_REACHED}" != - ]] || place="$(preempt::nowhere)"
  if [[ -n "${KIT_MAX_REQUEUES}" ]] && ((${#begun_at[@]} > KIT_MAX_REQUEUES)); then
    problem="this run was started again ${KIT_MAX_REQUEUES} times, and max_requeues allows no more"
  elif [[ -n "${place}" ]] && ((${#begun_at[@]} >= 2)) && [[ "${begun_at[-1]}" == "${KIT_REACHED}" && "${begun_at[-2]}" == "${KIT_REACHED}" ]]; then
    problem="this run makes no progress: two attempts in a row ended where they began (${place})"
  fi
  [[ -z "${problem}" ]] || kit::die "${problem}" "see what they did: ${KIT_LOG_DIR}; then start it again: $(kit::start_again)" no-progress
}

# preempt::nowhere - prints where a run without progress was to show some; nothing where the job names no such place.
preempt::nowhere() {
  [[ "${KIT_ON_PREEMPT}" != checkpoint ]] || printf "the program wrote nothing to \$KIT_PROGRESS%s" "${KIT_CHECKPOINT_PATH:+, and }"
  [[ -z "${KIT_CHECKPOINT_PATH:-}" ]] || printf 'there is no file in %s' "${KIT_CHECKPOINT_PATH}"
}

# preempt::has_failed - whether a rank has failed, for good: then the run ends as it would without a time limit.
preempt::has_failed() {
  [[ -z "${KIT_ELASTIC}" && -n "$(event::of rank_ended | grep -vE "\"code\": (0|${KIT_GO_ON})[,}]" || true)" ]]
}

# preempt::stopped CODE - a rank ended with this code.
preempt::stopped() { (($1 != KIT_GO_ON)) || preempt::go_on "all ranks have stopped for a checkpoint"; }

# preempt::ranks_told_to_stop ENDS FACTS - Slurm told the ranks to stop, and not this script: ENDS are the events of those that were,
# FACTS what Slurm knows of the job. The run goes on where they have saved, or where Slurm wants the nodes for another job.
preempt::ranks_told_to_stop() {
  local -r ends="$1" facts="$2"
  # Where a rank noted no end, it was killed, perhaps because memory had run out, and the others were told to stop for it.
  [[ "${facts}" == *' PreemptTime='[0-9]* ]] || [[ "${ends}" == *"\"code\": ${KIT_GO_ON}, "* && -z "$(ranks::unended)" ]] || return 0
  # One that could not save, whose disk may be full, is the user's to know.
  ! grep -qvE "\"code\": (0|${KIT_GO_ON}|143), " < <(printf '%s\n' "${ends}") || return 0
  preempt::go_on "the ranks were told to stop, and have ended"
}

# preempt::go_on WHY - ends this attempt, and sees that there is another; unless a person wants none.
preempt::go_on() {
  [[ -z "${KIT_SIGNAL}" ]] || ending::after_signal "${KIT_GO_ON}" # cancelled meanwhile
  [[ -z "${KIT_REQUEST}" ]] || preempt::answer_request "$1"
  if [[ -n "${KIT_LOOPBACK:-}" ]]; then
    if [[ -n "${KIT_NEAR_END:-}" && -z "$(event::of node_refused)" ]]; then
      KIT_OUTCOME=TIMEOUT
      event::note stopped_by state TIMEOUT cause checkpointed problem "$1" fix "to go on: kit rerun"
    fi
    kit::say "$1; start it again to go on"
    exit "${KIT_GO_ON}"
  fi
  preempt::check_progress
  local how="Slurm starts this job again"
  [[ -z "${KIT_RESUBMIT:-}" ]] || how="another job goes on"
  kit::say "$1, progress: ${KIT_REACHED}; ${how}"
  if [[ -n "${KIT_RESUBMIT:-}" ]]; then
    ! preempt::sbatch || exit "${KIT_GO_ON}"
    kit::say "that job is refused; Slurm starts this one again"
  fi
  ending::note_requeue
  preempt::requeue || preempt::submit || exit 1
  exit "${KIT_GO_ON}"
}

# preempt::requeue - has Slurm take this job back into the queue, and tries again while slurmctld does not answer. It may have done so
# though its answer was lost: to submit another job, too, would run the program twice.
preempt::requeue() {
  local answer facts away=''
  local -i begin_s="${SECONDS}" refusals=0
  while :; do
    KIT_GOES_ON=yes # before it is true: Slurm ends this script soon after
    # While slurmctld was away it may have given up this node, and started the job again on others: that attempt is left alone.
    if [[ -z "${away}" ]]; then
      ! answer="$(timeout 30 scontrol requeue "${KIT_ID}" 2>&1)" || return 0
      [[ "${answer}" != *'is pending'* ]] || return 0 # it was done the last time
    fi
    facts="$(ending::facts)"
    ! ending::is_requeued "${facts}" || return 0
    KIT_GOES_ON=''
    if [[ "${facts}" != *' JobState='* ]]; then
      ((SECONDS - begin_s < KIT_REQUEUE_S)) || break
      [[ -n "${away}" ]] || kit::say "slurmctld does not answer, and is asked again: ${answer}"
      away=yes
      ! ending::await_signal 5 || ending::after_signal "${KIT_GO_ON}"
    elif [[ -n "${away}" ]]; then
      away='' # it is back
    else
      refusals+=1
      ((refusals < 2)) || break # the first time slurmctld may only just have come back, or the job been cancelled
      ! ending::await_signal 2 || ending::after_signal "${KIT_GO_ON}"
    fi
  done
  kit::say "it does not: ${answer}"
  return 1
}

# preempt::answer_request WHY - does what a person has asked for, now that the ranks have stopped.
preempt::answer_request() {
  local progress
  progress="$(again::progress)"
  if [[ "${KIT_REQUEST}" == stop ]]; then
    event::note stopped progress "${progress}" ${KIT_ASKED_BY:+by "${KIT_ASKED_BY}"}
    kit::say "$1, progress: ${progress}; the job ends, as was asked for${KIT_ASKED_BY:+ by ${KIT_ASKED_BY}}"
    exit 0
  fi
  kit::say "$1, progress: ${progress}; all ranks start again"
  again::start "${KIT_GO_ON}" "${KIT_RESTARTS:-0}" '' ''
}

# preempt::submit - as preempt::sbatch, where the run cannot go on otherwise. Not when the ranks have ended: a site that cancels
# preempted jobs leaves no time for that.
preempt::submit() {
  ! preempt::sbatch || return 0
  KIT_OUTCOME=FAILED
  # This script lives on: the ranks may still be writing, and Slurm would end them with it.
  (kit::die "the job that should go on is refused" "submit it by hand: $(kit::start_again)")
}

# preempt::is_in_range NODES - whether the script itself asks for a range of nodes with that number: then it may ask for that again.
preempt::is_in_range() {
  local least most
  read -r least most < <(sed -n 's/^#SBATCH --nodes=\([0-9]*\)-\([0-9]*\)$/\1 \2/p' "${KIT_RUN_DIR}/run_script.sh") || return 1
  ((least <= $1 && $1 <= most))
}

# preempt::sbatch - submits a job for the same run directory, on the same cluster, which begins when this one is gone.
preempt::sbatch() {
  local name answer next after="afterany:${KIT_ID}"
  local -r nodes="${SLURM_JOB_NUM_NODES:-${SLURM_NNODES}}"
  # The time that the user's submission waited for is over.
  local -a options=(--begin=now) unset=()
  preempt::is_in_range "${nodes}" || options+=(--nodes="${nodes}")
  # Of the jobs of this name one runs at a time.
  ! grep -qi '^#SBATCH --dependency=.*singleton' -- "${KIT_RUN_DIR}/run_script.sh" || after+=,singleton
  # Another cluster does not know the job that this one waits for.
  ! grep -q '^#SBATCH --clusters=' -- "${KIT_RUN_DIR}/run_script.sh" || options+=(--clusters="${SLURM_CLUSTER_NAME}")
  # Of an array this one alone goes on.
  [[ -z "${SLURM_ARRAY_TASK_ID:-}" ]] || options+=(--array="${SLURM_ARRAY_TASK_ID}")
  # With this job's variables the new one would have its restarts for its own.
  for name in "${!SLURM_@}" KIT_IS_AGAIN KIT_RESTARTS KIT_PLACE KIT_LOST KIT_SUSPECT; do
    environment::finds_slurm "${name}" || unset+=(-u "${name}")
  done
  answer="$(
    [[ -z "${KIT_SHARE:-}" ]] || umask "${KIT_UMASK}" # which sbatch hands on
    env "${unset[@]}" sbatch --parsable --dependency="${after}" "${options[@]}" --chdir="${KIT_RUN_DIR}" "${KIT_RUN_DIR}/run_script.sh"
  )" || return
  # A site's wrapper may add lines, or drop --parsable.
  next="$(printf '%s\n' "${answer}" | sed -nE 's/^(Submitted batch job )?([0-9]+)(;.*| on cluster .*)?[[:space:]]*$/\2/p' | tail -n 1)"
  KIT_GOES_ON=yes
  [[ -z "${next}" ]] || next+="${SLURM_ARRAY_TASK_ID:+_${SLURM_ARRAY_TASK_ID}}"
  [[ -z "${next}" ]] || printf '%s\n' "${next}" >"${KIT_LOG_DIR}/continued-by"
  ending::note_requeue
  if [[ -z "${next}" ]]; then
    kit::error "sbatch did not say which job goes on: ${answer}" "find it: squeue --me; if it is held: scontrol release ID"
  elif grep -qx '#SBATCH --hold' -- "${KIT_RUN_DIR}/run_script.sh" && ! timeout 30 scontrol release "${next}"; then
    kit::error "job ${next}, which is to go on, is still held" "scontrol release ${next}"
  else
    kit::say "job ${next} goes on"
  fi
}
