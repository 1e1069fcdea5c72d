# ranks.sh - the step of the ranks, on the first node: starts them, hands signals on, and sees that all of them ended.

# ranks::run - returns when all ranks have ended well, and else ends the job with the code of the rank that failed first.
ranks::run() {
  local ending='' rc
  local -a wait=(ranks::wait)
  step::choose_ranks_options
  [[ -z "${KIT_LEAST_NODES:-}" ]] || { beat::begin && wait=(beat::wait); }
  [[ -z "${KIT_SIGNAL}" ]] || ending::after_signal 143 # it came before there was anything to end
  ! preempt::asked || exit 1
  event::note ranks_started
  KIT_RANKS_BEGUN_S="${SECONDS}"
  # Where Slurm starts the container, the script starts inside, where the image's variables win over what is exported here: so as arguments.
  # srun gives its tasks the name of their step for that of the job.
  "${KIT_SRUN_RANKS[@]}" bash "${KIT_RUN_DIR}/run_script.sh" start "${KIT_FACTS[@]}" ${SLURM_JOB_NAME:+"SLURM_JOB_NAME=${SLURM_JOB_NAME}"} &
  local -r srun_pid=$!
  while :; do
    rc=0
    "${wait[@]}" "${srun_pid}" || rc=$?
    ! preempt::asked "${srun_pid}" || continue
    [[ -n "${KIT_SIGNAL}" ]] || break
    KIT_SIGNAL=''
    [[ -n "${ending}" ]] || ending::explain_end
    ending=yes wait=(wait)
  done
  [[ -z "${KIT_LEAST_NODES:-}" ]] || beat::end
  [[ -z "${ending}" ]] || exit "$((rc > 0 ? rc : 143))"
  ((rc == 0)) || ending::explain_failure "${rc}"
}

# ranks::wait SRUN_PID - as `wait`, which returns for a signal only if it comes meanwhile.
ranks::wait() {
  [[ -z "${KIT_SIGNAL}${KIT_ASKED:-}" ]] || return 143
  wait "$1"
}

# ranks::check_ends - srun's 0 alone is not believed: each rank that began has to have noted its end, and one at least of each
# task. Where the disk takes no notes, or a launcher of the site's own makes none, there is nothing to count.
ranks::check_ends() {
  local -i tries
  local absent=''
  event::note ranks_ended
  [[ "$(event::of 'ranks_(started|ended)' batch.jsonl | wc -l)" == 2 ]] || return 0
  for ((tries = 0; tries < 10; tries++)); do # another node's notes may take a moment to show
    ((tries == 0)) || sleep 1
    ending::refresh "${KIT_EVENTS%/*}"
    absent="$(ranks::unended | kit::first_ten)"
    [[ -n "${absent}" ]] || return 0
  done
  ending::explain_absence ranks-unaccounted "${absent}" 'ranks there did not all begin and end'
}

# ranks::unended - prints the nodes on which not all ranks noted that they ended.
ranks::unended() {
  local hosts
  hosts="$(job::hosts)" && [[ -n "${hosts}" ]] || return 0 # Slurm may not answer at the end
  # shellcheck disable=SC2016 # awk's own variables
  { printf '%s\n' "${hosts}" && event::of 'rank_(started|ended)'; } | LC_ALL=C awk -v tasks="${KIT_TASKS_PER_NODE}" '
    !/^[{]/ { host[++hosts] = $1; next }
    function value(key, rest) { rest = substr($0, index($0, "\"" key "\": ") + length(key) + 4); sub(/^"/, "", rest); sub(/[",}].*/, "", rest); return rest }
    /"event": "rank_started"/ { begun[value("rank")] = value("node"); next }
    { over[value("rank")] = 1; ended[value("node")]++; notes++ }
    END {
      if (!notes) exit
      for (rank in begun) if (!(rank in over)) bad[begun[rank]] = 1
      for (i = 1; i <= hosts; i++) if (host[i] in bad || ended[host[i]] < tasks) print host[i]
    }' || true
}
