# stall.sh - with `stall_timeout`: ranks that stand still are noticed, and where each of them stands is kept. See docs/hang.md.
# only: KIT_STALL_S

KIT_WORKING_TIMES=3 # as long as the timeout, after which work alone is no progress: NCCL waits with a busy CPU

# stall::begin - on the first node, when the ranks start.
stall::begin() {
  KIT_PROGRESS_AT="${SECONDS}" KIT_WORKED_AT="${SECONDS}" KIT_LOOK_AT="${SECONDS}" KIT_LOOKED_AT="${SECONDS}"
  KIT_RAN=0 KIT_AT_START=yes # for how long the ranks had a CPU since the last progress, in hundredths of a second
  KIT_LOOK_S=$((KIT_STALL_S / 10 > 30 ? 30 : KIT_STALL_S / 10 < 1 ? 1 : KIT_STALL_S / 10))
  KIT_STALL_TOLD='' # whether people were told since the last progress
  KIT_NEWEST=''     # when the newest of the checkpoints was written; those of the first look are no progress
  stall::look
}

# stall::forgive SECONDS - so long this script did not look: it was stopped, with its machine perhaps, or waited for the disk. The
# ranks may have been, too.
stall::forgive() {
  (($1 > 1)) || return 0 # looking takes its time
  KIT_PROGRESS_AT=$((KIT_PROGRESS_AT + $1 < SECONDS ? KIT_PROGRESS_AT + $1 : SECONDS))
  KIT_WORKED_AT=$((KIT_WORKED_AT + $1 < SECONDS ? KIT_WORKED_AT + $1 : SECONDS))
  KIT_LOOKED_AT=$((KIT_LOOKED_AT + $1 < SECONDS ? KIT_LOOKED_AT + $1 : SECONDS))
}

# stall::check SRUN_PID - acts where the ranks have shown no progress for too long. What computes is given more time: it may load,
# compile, evaluate, or write a large checkpoint.
stall::check() {
  local -i quiet_s idle_s now="${SECONDS}" # this script, too, may be stopped while it looks
  ((now >= KIT_LOOK_AT)) || return 0
  KIT_RAN=$((KIT_RAN + (now - KIT_LOOKED_AT) * $(stall::share))) KIT_LOOKED_AT="${now}"
  ! stall::has_progress || KIT_PROGRESS_AT="${now}" KIT_RAN=0 KIT_STALL_TOLD=''
  KIT_LOOK_AT=$((SECONDS + KIT_LOOK_S)) # after the look, which takes long at the logs of 30,000 ranks: meanwhile nobody hears the nodes
  quiet_s=$((now - KIT_PROGRESS_AT)) idle_s=$((now - KIT_WORKED_AT))
  ((quiet_s >= KIT_STALL_S)) || return 0
  ((idle_s >= KIT_STALL_S + 2 * KIT_BEAT_S)) || stall::works_in_vain || return 0
  stall::act "$1"
}

# stall::works_in_vain - whether the caller's `quiet_s` is too long for ranks that work. If others use the CPUs, too, they need longer
# for the same work: while the ranks start and load, count only the time in which they had a CPU; later a third of it is enough.
stall::works_in_vain() {
  local -i needed_s=KIT_STALL_S
  [[ -z "${KIT_AT_START}" ]] || needed_s="$((KIT_STALL_S * KIT_WORKING_TIMES))"
  ((quiet_s >= KIT_STALL_S * KIT_WORKING_TIMES && KIT_RAN >= 100 * needed_s))
}

# stall::share - prints how much of the CPU that they want the ranks get on the node that has the least of it, in percent; 0 as long
# as no node has said that.
stall::share() {
  local -i least=100 each
  [[ -z "${KIT_BEATS}" ]] || ((${#KIT_SHARES[@]} > 0)) || least=0
  for each in "${KIT_SHARES[@]}"; do ((each >= least)) || least=each; done
  printf '%d' "${least}"
}

# stall::look - notes what the ranks have said so far, by the sizes and times of their files, whose names can be too long for a command.
stall::look() {
  KIT_SEEN="$(find -H "${KIT_ATTEMPT_DIR}" "${KIT_LOG_DIR}/progress" -maxdepth 1 \( -name 'rank*.out' -o -name progress \) -printf '%s %T@ %p\n' 2>/dev/null)" || true
  # What the lines of `setup` say is in the nodes' logs. It is no line of a rank's, which begins with more than 0: see stall::has_progress.
  [[ ! -e "${KIT_RUN_DIR}/setup.sh" || "${KIT_SEEN}" == *'/rank'*'.out'* ]] ||
    KIT_SEEN+=$'\n'"$(find -H "${KIT_ATTEMPT_DIR}" -maxdepth 1 -name '*.out' -printf '0 %s %T@ %p\n' 2>/dev/null)" || true
}

# stall::has_progress - whether a rank has said something, or saved something, since the last look: it is compared with what was seen
# then, since NFS may show what another node wrote a minute late. Where the disk takes no file, nobody can tell.
stall::has_progress() {
  local -r before="${KIT_SEEN}" newest="${KIT_NEWEST}"
  local found=''
  { : >"${KIT_LOG_DIR}/.looked" && rm -f -- "${KIT_LOG_DIR}/.looked"; } 2>/dev/null || return 0
  stall::look
  [[ "${KIT_SEEN}" == "${before}" ]] ||
    found="$(printf '%s\n' "${KIT_SEEN}" | grep -vxFf <(printf '%s\n' "${before}"))" || true
  [[ -z "${KIT_CHECKPOINT_PATH:-}" ]] || stall::find_newest
  [[ -z "${newest}" || "${KIT_NEWEST}" == "${newest}" ]] || found+=$'\n'"${KIT_NEWEST}"
  [[ $'\n'"${found}" != *$'\n'[1-9]* ]] || KIT_AT_START='' # the log of a rank that begins is empty
  [[ -n "${found}" ]]
}

# stall::find_newest - sets KIT_NEWEST to the newest time in the folder of the checkpoints, as far as ten seconds suffice to see that;
# the future, which a wrong clock writes, would hide what follows.
stall::find_newest() {
  KIT_NEWEST="$(timeout 10 find -H "${KIT_CHECKPOINT_PATH}" ! -newermt '1 day' -printf '%T@\n' 2>/dev/null |
    awk -v newest="${KIT_NEWEST:-0}" '$1 > newest { newest = $1 } END { print newest }')" || true
}

# stall::act SRUN_PID - keeps where the ranks stand; then ends them, unless the job says `on_stall: report`.
stall::act() {
  local what="for ${quiet_s} s no rank has said or saved anything"
  ((idle_s < KIT_STALL_S)) || what+=", or worked"
  event::note stalled quiet_s "${quiet_s}" idle_s "${idle_s}"
  kit::say "the ranks stand still: ${what}"
  stall::keep_stacks
  [[ -n "${KIT_STALL_TOLD}" ]] || kit::if_there notify::stall "${what}"
  KIT_STALL_TOLD=yes
  if [[ "${KIT_ON_STALL}" == report ]]; then
    KIT_PROGRESS_AT="${SECONDS}" KIT_WORKED_AT="${SECONDS}" KIT_RAN=0
    return
  fi
  beat::end_ranks "$1"
  kit::if_there restart::consider 1 '' '' stalled
  kit::die "the ranks stood still: ${what}" "where they stood: kit hang ${KIT_ID}" stalled
}

# stall::keep_stacks - where each rank is, for `kit hang`.
stall::keep_stacks() {
  local variable=RANK
  local -a step
  [[ "${KIT_LAUNCHER}" == torchrun ]] || ((KIT_TASKS_PER_NODE > 1)) || variable=NODE_RANK
  beat::step stacks
  {
    timeout "$((60 + NNODES / 50))" "${step[@]}" bash "${KIT_RUN_DIR}/lib/stacks.sh" "${SLURM_JOB_ID}" "${variable}" some pause "${KIT_RUN_DIR}/.py-spy" \
      >"${KIT_LOG_DIR}/stacks.${KIT_ATTEMPT}" || true
  } 2>/dev/null # the ranks may have ended meanwhile
}
