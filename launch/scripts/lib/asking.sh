# shellcheck disable=SC2154  # RANK and kit_log are rank.sh's
# asking.sh - how a rank's program learns that a checkpoint is wanted.
# only: KIT_ON_PREEMPT=checkpoint

# asking::for_checkpoint - reads the program's process id, and sends it SIGUSR1 each time the first node wants a checkpoint, as
# a line more in a file says. It looks every two seconds, on hundreds of nodes less often to spare the file server, without starting
# a process, until the rank closes its input. A process that does not handle SIGUSR1 would die of it: it is not sent until it does,
# since a program may still be importing.
asking::for_checkpoint() {
  trap '' TERM INT HUP USR1 USR2
  local kit_program kit_answer kit_is_noted=''
  local -i kit_wanted kit_sent=0
  local -a kit_handlers kit_requests=()
  read -r kit_program || return 0
  while :; do
    kit_answer=0
    read -r -t "$((2 + ${NNODES:-1} / 500))" _ || kit_answer=$?
    ((kit_answer > 128)) || return 0
    [[ -e "${KIT_CHECKPOINT_FILE}" ]] || continue
    mapfile -t kit_requests 2>/dev/null <"${KIT_CHECKPOINT_FILE}" || true
    kit_wanted=$((${#kit_requests[@]} > 0 ? ${#kit_requests[@]} : 1))
    ((kit_wanted > kit_sent)) || continue
    asking::find_handlers "${kit_program}"
    if ((${#kit_handlers[@]} > 0)); then
      kill -USR1 "${kit_handlers[@]}" 2>/dev/null || true
      kit_sent=kit_wanted
      continue
    fi
    [[ -n "${kit_is_noted}" ]] || asking::note_not_asked
    kit_is_noted=yes
  done
}

# asking::find_handlers PROCESS - sets the caller's kit_handlers: which of PROCESS and what it has started handle SIGUSR1. What a
# handler has started, such as the workers that load its data, is its own affair; but a shell hands nothing on.
asking::find_handlers() {
  local -a kit_processes=("$1")
  local -i kit_i
  local kit_exe
  kit_handlers=()
  for ((kit_i = 0; kit_i < ${#kit_processes[@]}; kit_i++)); do
    kit_exe="$(readlink "/proc/${kit_processes[kit_i]}/exe" 2>/dev/null || true)"
    [[ "${kit_exe##*/}" == @(bash|dash|sh|ksh*|zsh|busybox) ]] || kit_exe=''
    if asking::handles "${kit_processes[kit_i]}" "${kit_exe}"; then
      kit_handlers+=("${kit_processes[kit_i]}")
      [[ -n "${kit_exe}" ]] || continue
    fi
    rank::add_children "${kit_processes[kit_i]}"
  done
}

# asking::handles PROCESS SHELL - whether it handles SIGUSR1, the kernel's bit 9. A SHELL with a trap for EXIT catches all signals,
# SIGVTALRM (bit 25) as well, to end itself by them in order: then its text says whether it means SIGUSR1.
asking::handles() {
  local kit_line kit_value='' kit_text=''
  local -a kit_lines=() kit_words=()
  # At once: for each line that `read` reads the kernel writes the file anew, in which other lines may have become longer.
  mapfile -t kit_lines 2>/dev/null <"/proc/$1/status" || return 1
  for kit_line in "${kit_lines[@]}"; do [[ "${kit_line}" != SigCgt:* ]] || kit_value="${kit_line##*[[:space:]]}"; done
  ((16#${kit_value:-0} & 16#200)) || return 1
  [[ -n "$2" ]] && ((16#${kit_value} & 16#2000000)) || return 0
  mapfile -d '' -t kit_words 2>/dev/null <"/proc/$1/cmdline"
  [[ "${kit_words[*]}" != *USR1* ]] || return 0
  for kit_value in "${kit_words[@]:1}"; do
    kit_text="${kit_value}"
    [[ "${kit_value}" == /* ]] || kit_text="/proc/$1/cwd/${kit_value}"
    [[ "${kit_value}" != "${KIT_RUN_DIR}/lib/own_lines.sh" ]] || kit_text="${KIT_RUN_DIR}/script.sh" # the trap there is kit's own
    [[ ! -f "${kit_text}" ]] || break
  done
  [[ -f "${kit_text}" ]] && grep -qs USR1 -- "${kit_text}"
}

# asking::has_stopped - whether the program stopped for a checkpoint though it did not end with 75. Python handles no signal in its last
# moments, after which SIGUSR1 may come: 138. Of the ranks that the program of a node has started, the end of its log has the codes, and none
# failed: torchrun, Accelerate and torch.multiprocessing end with 1 for every code. Those with -15 torchrun ended after the first.
asking::has_stopped() {
  [[ -e "${KIT_CHECKPOINT_FILE}" ]] || return 1
  ((kit_code != 138)) || return 0
  ((kit_code == 1)) && [[ "${KIT_LOGGED:-}" == node ]] || return 1
  rank::flush
  local kit_codes kit_end
  kit_end="$(tail -n 200 -- "${kit_log}" | tr -d '\0')" || true
  kit_codes="$(printf '%s\n' "${kit_end}" | sed -nE 's/.*exitcode *: (-?[0-9]+).*/\1/p' | grep -vx -e -15 | sort -u)" || true
  # Without torchrun's table the last such line is their own: the program may have spoken of others before.
  [[ -n "${kit_codes}" ]] || kit_codes="$(printf '%s\n' "${kit_end}" | sed -nE 's/.*(exit status |terminated with exit code )(-?[0-9]+).*/\2/p' | tail -n 1)" || true
  [[ "${kit_codes}" == 75 ]]
}

asking::note_not_asked() {
  event::note not_asked rank "${RANK}"
  kit::say "the program does not handle SIGUSR1, and would die of it: kit does not send it. Let it handle the signal, or look for \$KIT_CHECKPOINT_FILE, or use \`on_preempt: requeue\`" \
    2>>"${kit_log}"
}
