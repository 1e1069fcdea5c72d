# ending.sh - why the job ends, in the words that its user needs: on the first node, which sees what srun and all ranks noted.

# ending::listen - bash runs a trap only between commands, so it notes the signal, and what waits for srun looks at the note, which
# run_script.sh may already have made.
ending::listen() {
  KIT_GOES_ON='' # whether there is to be another attempt
  trap 'KIT_SIGNAL=TERM' TERM
  trap ending::interrupt INT
  trap 'ending::leave "$?"' EXIT
  preempt::listen
}

# ending::interrupt - at Ctrl-C, where a person started this in an allocation: srun takes that for a question, and ends its step at TERM.
ending::interrupt() {
  local process
  for process in $(jobs -p); do
    kill -TERM "${process}" 2>/dev/null || continue
    kit::await_end "${process}" 10
  done
  exit 130
}

# ending::leave CODE - the last that this script does, however it ends.
ending::leave() {
  (($1 > 0)) || KIT_OUTCOME=COMPLETED
  event::note ends code "$1" outcome "${KIT_OUTCOME:-FAILED}"
  [[ -z "${KIT_LEAST_NODES:-}" ]] || beat::end
  [[ -z "${KIT_SHARE:-}" ]] || share::end
  ending::forget
  [[ -z "${KIT_NOTIFY:-}" ]] || notify::end "$1"
  [[ "${KIT_CACHE:-}" != keep ]] || kept_cache::keep "$1" || true
}

# ending::forget [FACTS] - removes what must not outlive the job: what its host_setup has exported, and the values of secrets.
ending::forget() {
  kit::if_there host_setup::forget
  [[ -z "${KIT_SECRETS:-}" ]] || secrets::forget "$@"
}

# ending::after_signal CODE
ending::after_signal() {
  ending::explain_end
  exit "$(($1 > 0 ? $1 : 143))"
}

# ending::heed_early_signal - ends this script if Slurm ends the job before preempt::begin, which notes this attempt for the job that
# replaces this one.
ending::heed_early_signal() {
  [[ -n "${KIT_SIGNAL}" ]] || return 0
  preempt::begin
  ending::after_signal 143
}

# ending::explain_end - says why Slurm ends the job: cancelled, out of time, preempted, or a node is gone. Slurm itself
# names only the first node.
ending::explain_end() {
  local facts='' state='' restarts silent=''
  ending::ask_slurm
  [[ ! "${facts}" =~ .*' JobState='([^ ]*) ]] || state="${BASH_REMATCH[1]}"
  if ending::is_requeued "${facts}"; then
    restarts="${BASH_REMATCH[1]}" KIT_GOES_ON=yes
    ending::note_requeue
    kit::say "Slurm takes this job back into the queue, for attempt $((restarts + 1)): it was preempted, requeued, or a node is gone"
    return
  fi
  local fix="if nobody cancelled it: a node may be gone (below), or its time up (\`time:\`)"
  if [[ "${facts}" == *' PreemptTime='[0-9]* ]]; then
    state=PREEMPTED # while a job ends, Slurm says COMPLETING of all
    fix="a job of higher priority took its place, and this site does not start it again; \`on_preempt: checkpoint\` does"
    ! preempt::submit || return 0
  fi
  local problem="this job is being ended (${state:-state unknown})"
  case "${KIT_LOOPBACK:+${state}}" in # kit run knows which it was
    TIMEOUT) problem+=": its time limit is over" fix="give it more: \`time:\`, or --time on the command line; or write checkpoints: \`on_preempt: checkpoint\`" ;;
    CANCELLED) problem+=": by Ctrl-C, kit cancel or a signal to kit" fix="to start it again: kit rerun" ;;
  esac
  # The ranks have them; and Slurm may kill this script, too, before they have ended: so what it has said is asked no second time.
  ending::forget "${facts}"
  KIT_OUTCOME="${state:-FAILED}"
  event::note stopped_by state "${state}" problem "${problem}" fix "${fix}"
  kit::error "${problem}" "${fix}"
  [[ -z "${KIT_NOTIFY:-}" ]] || notify::end # now, for the same reason
  [[ -n "${silent}" ]] || ending::name_down
}

# ending::ask_slurm - sets the caller's `facts` to what Slurm knows of this job, each between spaces. Slurm may be so busy with a node that is
# gone that it kills this script before it answers: silent nodes are named first then, and the caller's `silent` is set if there is one.
ending::ask_slurm() {
  local answer more=''
  local -ri asked_s="${SECONDS}"
  exec {answer}< <(SLURM_TIME_FORMAT=standard scontrol show job -o "${KIT_ID}" 2>/dev/null)
  if ! IFS= read -r -t 4 -u "${answer}" facts; then
    [[ -z "${KIT_BEATS:-}" || -n "${KIT_LOOPBACK:-}" ]] || beat::name_silent "${asked_s}"
    IFS= read -r -t 20 -u "${answer}" more || true # by default Slurm kills it after half a minute
  fi
  exec {answer}<&-
  facts=" ${facts}${more} "
}

# ending::name_down - names the nodes that Slurm calls down or failed. If there are none, names those that do not answer Slurm; else, if the
# caller's `facts` say that a node ended the job, those that it switches off, as for a machine of a cloud that is gone: with PowerDownOnIdle
# it switches off the nodes of every job that ends.
ending::name_down() {
  local found
  local -a lost
  found="$(timeout 10 sinfo --all --noheader --Node --nodes="${SLURM_JOB_NODELIST}" --format='%N %T' 2>/dev/null | sort -u || true)"
  mapfile -t lost < <(grep -E ' (down|fail)' < <(printf '%s\n' "${found}") || grep -F '*' < <(printf '%s\n' "${found}") ||
    { [[ "${facts}" != *' Reason=NodeDown '* ]] || sed -nE 's/ (idle|completing)[!%~]$/ being switched off/p' < <(printf '%s\n' "${found}"); })
  ending::name_lost "${lost[@]}"
}

# ending::name_lost ["NODE STATE"]... - in one message, however many they are.
ending::name_lost() {
  (($# > 0)) || return 0
  local line names what='this node is' without='this node' states=''
  local -a nodes=("${@%% *}")
  for line in "$@"; do
    event::note node_lost node "${line%% *}" state "${line#* }"
    [[ ", ${states}, " == *", ${line#* }, "* ]] || states+="${states:+, }${line#* }"
  done
  names="$(IFS=, && printf '%s' "${nodes[*]}")"
  (($# == 1)) || { what='these nodes are' without='them' && names="$(timeout 5 scontrol show hostlist "${names}" 2>/dev/null || printf '%s' "${names}")"; }
  SLURMD_NODENAME="$(printf '%s\n' "${nodes[@]}" | kit::first_ten)" kit::error "${what} ${states}" \
    "if Slurm does not start the job again, submit it without ${without}: $(kit::start_again "${names}")"
}

# ending::note_requeue - notes that another attempt follows this one.
ending::note_requeue() {
  KIT_OUTCOME=REQUEUED
  event::note requeued
}

# ending::explain_failure SRUN_CODE - ends with the code of the rank that failed first. torchrun turns every code into 1, and
# srun returns the largest of all nodes, so each rank notes its own: see rank.sh.
ending::explain_failure() {
  local -r srun_code="$1"
  local failed before node='' words='' code='' local_rank='' rank='' at='' how='' after=0
  ending::refresh "${KIT_ATTEMPT_DIR}"
  ending::refresh "${KIT_EVENTS%/*}"
  failed="$(ending::failed)" before="${failed}"
  ending::ask_srun
  if [[ -z "${failed}" ]]; then
    # Not a rank: a node said why, or srun did, above. The others were killed for it, with a larger code than its 1.
    ending::show_refusals
    [[ -n "${KIT_LOOPBACK:-}" ]] || ending::heed_slurm
  fi
  # By cut and grep: a pattern of bash would take an hour for the notes of 30,000 ranks.
  if [[ -n "${failed}" ]] && ending::was_killed && ! cut -d ' ' -f 2 < <(printf '%s\n' "${before}") | grep -xF -- "${node}" >/dev/null; then
    ending::explain_silence # what ranks of other nodes noted is that those of this one were gone
  fi
  if ! read -r rank code at local_rank how after < <(blame::first); then
    [[ -n "${failed}" ]] || ending::explain_silence
    read -r _ at rank local_rank code < <(printf '%s\n' "${failed}") # the oldest, without awk
    how=failed after=0
  fi
  ending::name_rank
}

# ending::heed_slurm - where no rank failed by itself: ends this script if Slurm ends the job. But Slurm tells the ranks alone to stop when
# the grace time of a preempted job begins, or for `scancel --signal=TERM`; where they have saved, the run goes on in another attempt.
ending::heed_slurm() {
  local stopped facts
  ! ending::await_signal 2 || ending::after_signal "${srun_code}"
  stopped="$(event::of rank_ended | grep -F '"stopped": true}')" || return 0
  facts="$(ending::facts)"
  [[ "${facts}" == *' JobState='* ]] || return 0
  # To requeue a job that somebody has cancelled would bring it back.
  [[ -z "${KIT_SIGNAL}" && "${facts}" == *' JobState=RUNNING '* ]] || ending::after_signal "${srun_code}"
  preempt::ranks_told_to_stop "${stopped}" "${facts}"
}

# ending::await_signal SECONDS - whether Slurm ends the job: it may end the ranks up to two seconds before it tells this script.
ending::await_signal() {
  local -i tries
  for ((tries = 0; tries < 4 * $1; tries++)); do
    [[ -z "${KIT_SIGNAL}" ]] || break
    sleep 0.25
  done
  [[ -n "${KIT_SIGNAL}" ]]
}

# ending::facts - prints what Slurm knows of this job, each fact between spaces; none if it does not answer in time.
ending::facts() {
  printf ' %s ' "$(SLURM_TIME_FORMAT=standard timeout 10 scontrol show job -o "${KIT_ID:-${SLURM_JOB_ID}}" 2>/dev/null || true)"
}

# ending::is_requeued FACTS - whether Slurm has taken the job back into the queue since this script began. Leaves how often in BASH_REMATCH[1].
ending::is_requeued() { [[ "$1" =~ .*' Restarts='([0-9]+) ]] && ((BASH_REMATCH[1] > ${SLURM_RESTART_COUNT:-0})); }

# ending::failed - prints "TIME NODE RANK LOCAL_RANK CODE" of each rank that failed without being told to stop, the first one first.
ending::failed() {
  event::of rank_ended |
    sed -n 's/^{"t": \([0-9.]*\), .*"node": "\([^"]*\)", "rank": \([0-9]*\), "local_rank": \([0-9]*\), "code": \([1-9][0-9]*\), "stopped": false}$/\1 \2 \3 \4 \5/p' | sort -n
}

# ending::name_rank - says what became of the caller's rank.
ending::name_rank() {
  local who="rank ${rank} (local rank ${local_rank})" outcome
  [[ "${KIT_LAUNCHER}" != @(spawn|ray) ]] || who="the program of node ${rank}" # its ranks are its own
  case "${how}" in
    failed)
      preempt::stopped "${code}"
      outcome="$(ending::outcome "${code}")"
      ;;
    left) outcome='left with code 0, while others still waited for it' ;;
    missing)
      outcome='was not where the others waited for it: it hung, or was killed with its shell'
      if ending::was_killed && [[ "${node}" == "${at}" ]]; then code=137; fi
      ;;
  esac
  event::note blamed node "${at#-}" rank "${rank}" local_rank "${local_rank#-}" code "${code}" how "${how}" problem "${who} ${outcome}"
  ending::show_log "${at}: ${who} ${outcome}" "rank${rank}.out" "${after}"
  kit::if_there restart::consider "${code}" "${rank}" "${at#-}"
  exit "${code}"
}

# ending::show_refusals - where nodes said why they could not start: ends with each reason once, behind the names of all that gave it. Of
# many, since each may have a number of its own in it, the first ten, and then how many more.
ending::show_refusals() {
  local nodes cause problem fix refused=''
  while IFS=$'\t' read -r cause problem fix nodes; do
    refused=yes
    [[ -n "${problem}" ]] || { kit::say "further reasons of other nodes: ${cause}, each in ${KIT_ATTEMPT_DIR}/NODE.out" && continue; }
    nodes="$(printf '%s' "${nodes// /$'\n'}" | kit::first_ten)" problem="$(printf '%b' "${problem}")" fix="$(printf '%b' "${fix}")"
    event::note node_refused node "${nodes}" cause "${cause}" problem "${problem}" fix "${fix}"
    SLURMD_NODENAME="${nodes}" kit::error "${problem}" "${fix}"
  done < <(event::of node_refused | LC_ALL=C awk -F '", "' '
    { sub(/^node": "/, "", $2); sub(/^cause": "/, "", $3); sub(/^problem": "/, "", $4); sub(/^fix": "/, "", $5); sub(/"}$/, "", $5) }
    { reason = $3 "\t" $4 "\t" $5 }
    !(reason in nodes) { order[++count] = reason }
    !((reason, $2) in said) { said[reason, $2]; nodes[reason] = nodes[reason] (reason in nodes && nodes[reason] != "" ? " " : "") $2 }
    END { for (i = 1; i <= count && i <= 10; i++) print order[i] "\t" nodes[order[i]]; if (i <= count) print count - 10 }')
  [[ -z "${refused}" ]] || exit 1
}

# ending::ask_srun - sets the caller's `node` and `words` to what srun said of the first task to fail, and `before` to the ranks that
# had failed until then, where the time is known. It stands in the job's own log, whose place the #SBATCH lines set; behind what earlier attempts left there.
ending::ask_srun() {
  if [[ -f "${KIT_LOG_DIR}/.first-task" ]]; then # by the stand-in of `kit run`
    local at_s
    read -r at_s node words <"${KIT_LOG_DIR}/.first-task" || return 0
    if ((words == 137)); then
      words=Killed before="$(printf '%s\n' "${failed}" "${at_s} until" | sort -n | sed '/ until$/,$d')" # its ranks live on, until they miss the others
    else
      node='' words='' # its ranks note any other code
    fi
    return
  fi
  IFS=: read -r node words < <(tail -c "+$((KIT_LOG_FROM + 1))" -- "${KIT_RUN_DIR}/log/slurm-${KIT_ID}.out" 2>/dev/null |
    sed -n 's/^srun: error: \([^ :]*\): tasks\{0,1\} [^:]*: \(.*\)/\1:\2/p' | head -n 1) || true
}

# ending::was_killed - whether srun says that the first process of a task was killed. It is, too, when memory runs out at a site whose
# TaskPluginParam is OOMKillStep: then the kernel kills all processes of the step there at once.
ending::was_killed() { [[ "${words}" == @(Killed|'Out Of Memory') ]]; }

# ending::explain_silence - nobody on the caller's `node` could say why: its first process was killed, or did not even start.
# Ends with its code.
ending::explain_silence() {
  local problem="no rank could say why it ended, or none started${KIT_IMAGE:+ from ${KIT_IMAGE}} (srun: code ${srun_code})"
  local log="${node}.out" fix='' cause='' full
  code="${srun_code}"
  if [[ -z "${node}" ]]; then
    log="$(cd -- "${KIT_ATTEMPT_DIR}" && compgen -G '*.out' | head -n 1)" || true
    ((code != 143)) || cause=terminated
  else
    problem="nothing there could say why its part of the job ended (srun: ${words}${KIT_IMAGE:+; image ${KIT_IMAGE}})"
    [[ ! -f "${KIT_LOG_DIR}/.first-task" ]] || problem="${problem/srun: /}" # of which the user of \`kit run\` knows nothing
    [[ "${words}" != Killed ]] || code=137 cause=node-task-killed fix="its first process was killed, by the kernel if memory ran out (dmesg | grep -i oom), else by a user or an administrator"
    [[ "${words}" != 'Out Of Memory' ]] || code=137 cause=host-out-of-memory fix="memory ran out: ask for more (\`slurm: {mem: ...}\`)"
    [[ ! "${words}" =~ code\ ([0-9]+) ]] || code="${BASH_REMATCH[1]}"
    # A node without that folder could not write this log.
    ((code != 126 && code != 127)) || [[ -s "${KIT_ATTEMPT_DIR}/${log}" ]] || cause=run-directory-missing-on-a-node fix="see whether ${node} has ${KIT_RUN_DIR}: it must be on a file system that every node sees"
  fi
  full="$(ending::unwritable)"
  if [[ -n "${full}" ]]; then
    [[ -n "${cause}" && "${cause}" != terminated ]] || cause=disk-full
    ((code != 143)) || code=1 # that of the ranks that were ended for the first one, which could not note its own
  fi
  event::note node_silent node "${node}" cause "${cause}" code "${code}" problem "${problem}" fix "${fix}"
  ending::show_log "${node:+${node}: }${problem}" "${log}"
  [[ -z "${fix}" ]] || printf '  fix: %s\n' "${fix}" >&2 || true
  kit::if_there restart::consider "${code}" "${rank}" "${node}"
  exit "${code}"
}

# ending::explain_absence CAUSE NODES PROBLEM - srun's own words are above, in the job's log; Slurm 22.05 ends with 0 all the same.
ending::explain_absence() {
  local -r fix="see whether ${KIT_RUN_DIR} is there: it must be on a file system that every node sees"
  event::note nodes_absent node "$2" cause "$1" problem "$3, though srun ended with 0" fix "${fix}"
  SLURMD_NODENAME="$2" kit::error "$3, though srun ended with 0" "${fix}"
  exit 1
}

# ending::show_log PROBLEM LOG [AFTER] - the problem, and the last lines of one of this attempt's logs; without those AFTER its
# exception, where they are many.
ending::show_log() {
  local -r log="${KIT_ATTEMPT_DIR#"${KIT_RUN_DIR}"/}/$2"
  local said='' what="${log} is empty" live='' full=''
  local -i skipped="${3:-0}"
  ((skipped > 15)) || skipped=0
  # Under `kit run` the ranks' lines of a node's log are on the terminal already.
  [[ -z "${KIT_LOOPBACK:-}" || ! -s "${KIT_ATTEMPT_DIR}/$2" ]] || live='/^\[rank[0-9]+\] /d' what="${log} says no more"
  said="$(ending::said "$2" "${skipped}" | sed -E "${live}" | tail -n 20 | cut -b 1-2000 | sed 's/^/  | /')" || true
  [[ "$2" != rank[0-9]* ]] || what='it printed nothing'
  [[ -n "${said}" ]] || full="$(ending::unwritable)"
  [[ -z "${full}" ]] || what="what it said is lost, since ${KIT_LOG_DIR} takes nothing more: ${full} (df -h, df -i, quota -s)"
  [[ -z "${said}" ]] || what="the end of ${log}:"$'\n'"${said}"
  printf 'kit: error: %s; %s\n' "$1" "${what}" >&2 || true
}

# ending::said LOG [AFTER] - prints the last 200 lines of one of this attempt's logs, or those before the last AFTER, without torch's
# "[rank3]: " and its frames of C++.
ending::said() {
  [[ ! -f "${KIT_ATTEMPT_DIR}/$1" ]] || tail -n "$((200 + ${2:-0}))" -- "${KIT_ATTEMPT_DIR}/$1" 2>/dev/null | head -n "-${2:-0}" | tr -d '\0' | sed -E 's/^\[rank[0-9]+\]: ?//; /^frame #[0-9]+: /d'
}

# ending::unwritable - prints why the folder of the logs takes nothing more, such as a full disk; nothing if it does.
ending::unwritable() {
  local said
  said="$({ printf '\n' >"${KIT_LOG_DIR}/.refresh"; } 2>&1)" || printf '%s' "${said##*: }"
  rm -f -- "${KIT_LOG_DIR}/.refresh" 2>/dev/null || true
}

ending::outcome() {
  local -ri code="$1"
  if ((code > 128)) && kill -l "$((code - 128))" >/dev/null 2>&1; then
    printf 'was killed by SIG%s' "$(kill -l "$((code - 128))")"
    ((code != 137)) || printf ' (by the kernel if memory ran out: dmesg | grep -i oom; else by a user or an administrator)'
  else
    printf 'exited with code %d' "${code}"
  fi
}

# ending::refresh FOLDER - making a file in it refreshes what an NFS client remembers of the folder.
ending::refresh() { { : >"$1/.refresh" && rm -f -- "$1/.refresh"; } 2>/dev/null || true; }
