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
