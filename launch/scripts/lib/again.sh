# again.sh - all ranks start again within the job, which Slurm knows nothing of: run_script.sh begins anew.

# again::start CODE RESTARTS PLACE SUSPECT - this script begins anew, in its own place: the ranks, which ended with CODE, start again on
# the job's nodes, in the containers that are there. SUSPECT is the node to blame, if one is known.
again::start() {
  local suspects="$4"
  if [[ -n "${suspects}" ]] && ((KIT_SPARES > 0)); then # a spare may have been left out for what it has
    suspects+=" $(scontrol show hostnames "${SLURM_JOB_NODELIST}" | grep -vxFf <(job::hosts) | tr '\n' ' ' || true)"
  fi
  [[ -z "${KIT_SHARE:-}" ]] || share::end
  # What has come since the caller looked would not reach the script that begins anew.
  [[ -z "${KIT_SIGNAL}" ]] || ending::after_signal "$1"
  if [[ -n "${KIT_NEAR_END}" && -z "${KIT_LOOPBACK:-}" ]]; then
    KIT_REQUEST='' # or go_on would come back here
    preempt::go_on "the time limit is near"
  fi
  event::note restarting code "$1"
  [[ ! -e "${KIT_RUN_DIR}/host_setup.sh" ]] || export KIT_HOST_IS_SET_UP=again
  exec "${BASH}" "${KIT_RUN_DIR}/run_script.sh" again "$2" "$3" "${KIT_LOST:-}" "${suspects}"
}

# again::wait_for_earlier - gives the ranks of the attempt before this one half a minute to leave their GPUs and their memory.
again::wait_for_earlier() {
  local -ri begin_s=SECONDS
  [[ -z "${KIT_LOST:-}" ]] || return 0 # they were on a node that cannot say that they have
  while ((SECONDS - begin_s < 30)) && [[ -n "$(again::running ranks)" ]]; do sleep 1; done
}

# again::running PATTERN - prints the ids of the job's steps of such names. Not by SLURM_JOB_ID: one task of each array has the array's own
# number there, which stands for all of them.
again::running() { squeue --noheader --all --steps --jobs="${KIT_ID}" --format='%i %j' 2>/dev/null | sed -nE "s/^([^ ]+) ($1)\$/\1/p"; }

# again::progress - what the program last said of how far it is, such as the number of a step; else its newest checkpoint; - for
# nothing.
again::progress() {
  local said=''
  [[ ! -f "${KIT_LOG_DIR}/progress" ]] || read -r said 2>/dev/null <"${KIT_LOG_DIR}/progress" || true
  [[ -n "${said}" || -z "${KIT_CHECKPOINT_PATH:-}" ]] || said="$(again::newest)" || true
  printf '%s\n' "${said:--}"
}

# again::newest - prints the newest file of the job's checkpoints, and when it was written. It takes ten seconds at most, since
# the time limit may be near.
again::newest() {
  {
    timeout 10 find -H "${KIT_CHECKPOINT_PATH}" -type f -printf '%T@ %p, %T+\0' 2>/dev/null ||
      (($? != 124)) || kit::say "${KIT_CHECKPOINT_PATH} has too many files to see all of them in 10 s"
  } | tr '\000\001-\037\177' '\n?' | LC_ALL=C awk '
    $1 > newest || ($1 == newest && $0 > line) { newest = $1; line = $0 }
    END { sub(/^[^ ]+ /, "", line); print line }'
}
