#!/usr/bin/env bash
# stacks.sh - shows where the ranks of a job are on this node, for `kit hang`. It changes nothing,
# and needs no Python.
#
#   stacks.sh JOB_ID VARIABLE CHILDREN PAUSE [PY_SPY...]
#
# VARIABLE names the rank in its process's environment: RANK or NODE_RANK. CHILDREN of the ranks,
# such as DataLoader workers, are shown: "all", or "some": where their rank waits for them. PAUSE is
# "pause" or "no-pause": without py-spy, which pauses each process for some milliseconds. PY_SPY are
# files that may be one.
#
# It prints fields with tabs between them, the node's name first, for diagnose/hang/stacks.py:
#   process PID RANK PARENT COMMAND | stack PID LINE | means PID HOW | facts PID NAME VALUE | end
set -euo pipefail +o posix +o noclobber && shopt -u failglob

readonly STACKS_NODE="${SLURMD_NODENAME:-${HOSTNAME}}"
readonly STACKS_DUMP_S="${STACKS_DUMP_S:-10}" # py-spy takes 10 ms
readonly STACKS_CHILDREN=8                    # of a rank that waits for them
readonly STACKS_LINE=900                      # bytes; srun keeps lines of up to 1024 whole
readonly STACKS_END_S=18                      # no child is looked at after that: kit waits for 30 s
LC_ALL=C                                      # so that bytes are what bash counts

declare -A RANK_OF=() NODE_OF=() PARENT_OF=() START_OF=() IS_PYTHON=() MAIN_OF=()

# stacks::say PID KIND FIELD... - a line about a process, without tabs and line ends in its fields.
stacks::say() {
  local line="${NODE_OF[$1]}"$'\t'"$2"$'\t'"$1" field
  for field in "${@:3}"; do line+=$'\t'"${field//[$'\t\n']/ }"; done
  printf '%s\n' "${line:0:STACKS_LINE}"
}

# stacks::stat PID - sets STAT to its fields behind the second, its name, which may hold anything.
stacks::stat() {
  local text=''
  { read -r -d '' text <"/proc/$1/stat"; } 2>/dev/null || [[ -n "${text}" ]] || return 1
  # shellcheck disable=SC2206  # numbers and a letter
  STAT=(${text##*) })
}

stacks::command() { { tr '\0' ' ' <"/proc/$1/cmdline"; } 2>/dev/null || true; }

# stacks::find JOB_ID VARIABLE - the processes of the job's ranks, by kit's and Slurm's variables.
stacks::find() {
  local -r job="$1" variable="$2"
  local -A job_of=() is_ours=()
  local -r names="SLURM_JOB_ID|KIT_RUN_DIR|SLURMD_NODENAME|${variable}"
  local pid pair
  while IFS= read -r pair; do
    pid="${pair%%/environ:*}"
    pid="${pid##*/}" pair="${pair#*/environ:}"
    case "${pair}" in
      SLURM_JOB_ID=*) job_of["${pid}"]="${pair#*=}" ;;
      KIT_RUN_DIR=*) is_ours["${pid}"]=yes ;;
      SLURMD_NODENAME=*) NODE_OF["${pid}"]="${pair#*=}" ;;
      "${variable}"=*) RANK_OF["${pid}"]="${pair#*=}" ;;
    esac
  done < <(grep -zaHE "^(${names})=" /proc/[0-9]*/environ 2>/dev/null | tr '\n\0' ' \n')
  for pid in "${!RANK_OF[@]}"; do
    if [[ "${job_of[${pid}]:-}" != "${job}" || -z "${is_ours[${pid}]:-}" ||
      ! "${RANK_OF[${pid}]}" =~ ^[0-9]+$ ]] ||
      stacks::is_wrapper "${pid}" || ! stacks::stat "${pid}"; then
      unset "RANK_OF[${pid}]"
      continue
    fi
    PARENT_OF["${pid}"]="${STAT[1]}"
    START_OF["${pid}"]="${STAT[19]}"
    NODE_OF["${pid}"]="${NODE_OF[${pid}]:-${STACKS_NODE}}"
  done
}

# What kit, torchrun and Python put beside the program.
stacks::is_wrapper() {
  local exe command
  exe="$(readlink -- "/proc/$1/exe" 2>/dev/null)" || return 0
  command="$(stacks::command "$1")"
  [[ "${exe##*/}" != busybox ]] || exe="${command%% *}"
  case "${exe##*/}" in
    tee | sed | awk | stdbuf) return 0 ;;
    bash) [[ "${command}" == *'.sh --rank '* ]] && return 0 ;;
    python* | pypy*)
      [[ "${command}" != *multiprocessing.resource_tracker* ]] || return 0
      [[ "${command}" != *' -m torch.distributed.run '* ]] || return 0
      IS_PYTHON["$1"]=yes
      ;;
  esac
  return 1
}

# stacks::choose - sets MAIN_OF: for each rank the process that is its program. Of Python's it is
# the newest that no other of them started; else the newest of all.
stacks::choose() {
  local pid rank parent best
  for pid in "${!RANK_OF[@]}"; do
    rank="${RANK_OF[${pid}]}" parent="${PARENT_OF[${pid}]}"
    if [[ -n "${IS_PYTHON[${pid}]:-}" && -n "${IS_PYTHON[${parent}]:-}" &&
      "${RANK_OF[${parent}]:-}" == "${rank}" ]]; then continue; fi
    best="${MAIN_OF[${rank}]:-}"
    if [[ -z "${best}" || "${IS_PYTHON[${pid}]:-}" > "${IS_PYTHON[${best}]:-}" ]] ||
      { [[ "${IS_PYTHON[${pid}]:-}" == "${IS_PYTHON[${best}]:-}" ]] &&
        ((START_OF[${pid}] > START_OF[${best}])); }; then
      MAIN_OF["${rank}"]="${pid}"
    fi
  done
}

# stacks::children PID - what this process started, and what those started.
stacks::children() {
  local pid
  for pid in "${!PARENT_OF[@]}"; do
    [[ "${PARENT_OF[${pid}]}" == "$1" ]] || continue
    printf '%s\n' "${pid}"
    stacks::children "${pid}"
  done
}

# stacks::tools PID [PY_SPY...] - each py-spy that may be run: those named, this node's, and the
# container's, which is seen below /proc/PID/root without entering it.
stacks::tools() {
  local -r pid="$1"
  local -a folders=()
  local argument='' tool folder path='' exe
  { IFS= read -r -d '' argument <"/proc/${pid}/cmdline"; } 2>/dev/null || true
  path="$(grep -zaE '^PATH=' "/proc/${pid}/environ" 2>/dev/null | tr -d '\0')" || true
  mapfile -t -d : folders < <(printf '%s' "${path#PATH=}")
  for tool in "${@:2}" "$(command -v py-spy || true)"; do
    [[ ! -x "${tool}" ]] || printf '%s\n' "${tool}"
  done
  exe="$(readlink -- "/proc/${pid}/exe")"
  for folder in "${argument%/*}" "${exe%/*}" "${folders[@]}"; do
    [[ "${folder}" == /* && -x "/proc/${pid}/root${folder}/py-spy" ]] || continue
    printf '/proc/%s/root%s/py-spy\n' "${pid}" "${folder}"
  done
}

# stacks::py_spy PID TOOL [ENTER...] - the stacks, or why there are none in one line.
stacks::py_spy() {
  local -r pid="$1"
  local -a options=(--full-filenames)
  local text rc=0
  # A stack that changes while it is read may be of no moment at all, so py-spy stops the process.
  # But a thread in the kernel's uninterruptible sleep (D) does not stop: it would do so later, when
  # nobody is there to go on with it. And what is stopped already (T, t) stands still.
  ! grep -qs '^State:[[:space:]]*[DTt]' "/proc/${pid}"/task/*/status || options+=(--nonblocking)
  text="$(timeout --kill-after=1 "${STACKS_DUMP_S}" "${@:3}" \
    "$2" dump "${options[@]}" --pid "${pid}" 2>&1)" || rc=$?
  # Ended by force, it may leave its stop signal behind.
  ((rc != 124 && rc != 137)) || [[ "${options[*]}" == *--nonblocking ]] ||
    kill -CONT "${pid}" 2>/dev/null || true
  if ((rc == 0)) && [[ "${text}" == *$'\nThread '* ]]; then
    printf '%s\n' "${text}"
    return
  fi
  if ((rc == 124 || rc == 137)); then
    printf 'py-spy got no answer in %d s' "${STACKS_DUMP_S}"
  else
    text="$(printf '%s\n' "${text}" | grep -v '^[[:space:]]*$' | head -n 3 | paste -sd ' ')" || true
    printf 'py-spy: %s' "${text:-ended with code ${rc}}"
  fi
  return 1
}

# stacks::dump PID [PY_SPY...] - its stack by the first way that works, and how; or why it has none.
stacks::dump() {
  local -r pid="$1"
  local -a tools=()
  local text tool problem='there is no py-spy' line
  if [[ "${STACKS_PAUSE}" == no-pause ]]; then
    stacks::say "${pid}" means 'none: as asked'
    return 1
  fi
  mapfile -t tools < <(stacks::tools "$@")
  for tool in "${tools[@]}"; do
    if text="$(stacks::py_spy "${pid}" "${tool}")" || stacks::enter "${pid}" "${tool}"; then
      while IFS= read -r line; do stacks::say "${pid}" stack "${line}"; done < <(printf '%s\n' "${text}")
      stacks::say "${pid}" means "py-spy: ${tool}"
      return
    fi
    problem="${text}"
    [[ "${problem}" != *'no answer'* ]] || break # another would wait as long
  done
  stacks::say "${pid}" means "none: ${problem}"
  return 1
}

# stacks::enter PID PY_SPY - sets text of the caller. Inside the container's user namespace, which
# is theirs, this user may do more.
stacks::enter() {
  [[ ! "/proc/$1/ns/user" -ef /proc/self/ns/user ]] && command -v nsenter >/dev/null || return 1
  local tool rc=0
  exec {tool}<"$2" # the file need not exist inside
  text="$(stacks::py_spy "$1" "/proc/self/fd/${tool}" \
    nsenter --user --mount --preserve-credentials --target "$1")" || rc=$?
  exec {tool}<&-
  return "${rc}"
}

# stacks::show PID [PY_SPY...] - everything about one process.
stacks::show() {
  local -r pid="$1"
  local -ra facts=("${RANK_OF[${pid}]}" "${PARENT_OF[${pid}]}" "$(stacks::command "${pid}")")
  stacks::say "${pid}" process "${facts[@]}"
  stacks::stat "${pid}" || return 0
  # What a signal has stopped may be at the same place as those that wait for it. (t is somebody else's look.)
  [[ "${STAT[0]}" != T ]] || stacks::say "${pid}" facts state T
  if [[ -z "${IS_PYTHON[${pid}]:-}" ]]; then
    stacks::say "${pid}" means 'none: it is not a Python program'
  elif stacks::dump "$@"; then
    return
  fi
  stacks::facts "${pid}"
}

# stacks::facts PID - what the kernel tells of it, and how busy it was for one second.
stacks::facts() {
  local -r pid="$1" of="/proc/$1"
  local -i before
  stacks::stat "${pid}" || return 0
  before=$((STAT[11] + STAT[12]))
  {
    stacks::say "${pid}" facts state "${STAT[0]}"
    stacks::say "${pid}" facts wchan "$(cat "${of}/wchan")"
    stacks::say "${pid}" facts kernel \
      "$(head -n 6 "${of}/stack" | sed 's/^\[<[^]]*>\] //; s/+.*//' | paste -sd ' ')"
    stacks::say "${pid}" facts threads "$(cat "${of}"/task/*/comm | sort | uniq -c |
      awk '{ n = $1; $1 = ""; print (n > 1 ? n " x" : "") $0 }' | paste -sd ,)"
  } 2>/dev/null
  sleep 1
  stacks::stat "${pid}" || return 0
  stacks::say "${pid}" facts cpu \
    "$(((STAT[11] + STAT[12] - before) * 100 / $(getconf CLK_TCK)))"
}

# stacks::rank PID CHILDREN [PY_SPY...] - its program, and its children where they are wanted.
stacks::rank() {
  local -r pid="$1" children="$2"
  local -r waits='torch/utils/data/dataloader|/(multiprocessing|concurrent/futures)/|/subprocess\.py'
  local -i most="${STACKS_CHILDREN}"
  local text child
  text="$(stacks::show "${pid}" "${@:3}")"
  printf '%s\n' "${text}"
  if [[ "${children}" == all ]]; then
    most=1000000
  # Its innermost frames alone: an idle thread of its own may wait for them all the time.
  elif ! printf '%s\n' "${text}" | grep -A 8 '"MainThread"' | grep -E "${waits}" >/dev/null; then
    return 0
  fi
  while IFS= read -r child && ((most-- > 0 && SECONDS < STACKS_END_S)); do
    stacks::show "${child}" "${@:3}"
  done < <(stacks::children "${pid}" | sort -n)
}

stacks::main() {
  local -r job="$1" variable="$2" children="$3"
  local -a answers=()
  local rank answer
  STACKS_PAUSE="$4"
  stacks::find "${job}" "${variable}"
  stacks::choose
  # All at once; and what each says stays together.
  for rank in "${!MAIN_OF[@]}"; do
    exec {answer}< <(stacks::rank "${MAIN_OF[${rank}]}" "${children}" "${@:5}")
    answers+=("${answer}")
  done
  for answer in "${answers[@]}"; do
    cat <&"${answer}"
    exec {answer}<&-
  done
  printf '%s\tend\n' "${STACKS_NODE}"
}

stacks::main "$@"
