# shellcheck shell=bash
# rank.sh - how launchers start a rank: with a log of its own, and with a note of its exit code, which torchrun would
# turn into 1, and of which srun would report the largest.

# rank::run PROGRAM... - RANK and LOCAL_RANK are set. Ends this shell with the program's exit code.
rank::run() {
  local -r kit_file="${KIT_LOG_DIR}/rank${RANK}"
  rm -f -- "${kit_file}.failed" # of an attempt before torchrun's restart
  # Both streams in one file, in order; and line by line, so that ranks do not cut into each other, to the node's log.
  exec {kit_console}>&1 > >(
    trap '' TERM INT HUP USR1 USR2 # it ends with the program's output, not with a signal to the program
    tee -a -- "${kit_file}.out" | rank::prefix "[rank${RANK}] "
  ) 2>&1
  local -r kit_logger=$!

  # torchrun and Slurm signal the whole group: the program acts on it, and this shell stays to see its end.
  local kit_stopped='' kit_code=0
  trap 'kit_stopped=1' TERM INT HUP
  trap : USR1 USR2
  "$@" || kit_code=$?
  # A rank that was told to stop did not cause the failure.
  if ((kit_code != 0)) && [[ -z "${kit_stopped}" ]]; then
    printf '%d %s %d\n' "${kit_code}" "${SLURMD_NODENAME:-${HOSTNAME}}" "${LOCAL_RANK}" >"${kit_file}.failed"
  fi

  # Let the last lines through; but a process that the program left behind may hold its output open for ever.
  exec >&"${kit_console}" 2>&1
  local -i kit_waited
  for ((kit_waited = 0; kit_waited < 40; kit_waited++)); do
    kill -0 "${kit_logger}" 2>/dev/null || break
    sleep 0.05
  done
  exit "${kit_code}"
}

# sed -u would read byte by byte; stdbuf, where there is one, makes only its output go line by line.
rank::prefix() {
  local -a kit_sed=(sed -u)
  ! command -v stdbuf >/dev/null || kit_sed=(stdbuf -oL sed)
  "${kit_sed[@]}" "s/^/$1/"
}
