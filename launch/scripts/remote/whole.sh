# shellcheck shell=bash
# whole.sh - what kit does on a login node that it has been copied to, whole: its own commands, and builds that outlive the
# connection. It follows login.sh, and is sent in the same way.

# whole::look FOLDER NAME - where kit's folder is; whether the copy of this name is in it; and the Python that runs it, or might.
whole::look() {
  local -r place="$(login::absolute "$1")/$2"
  login::own "$1" || return
  login::may_own "$(login::absolute "$1")" || return 0
  # shellcheck disable=SC2154 # login.sh sets login_mark
  if [[ -e "${place}" && ! -f "${place}/${login_mark}" ]]; then
    printf 'foreign %s\n' "${place}"
  elif [[ -d "${place}" ]]; then
    touch -- "${place}"
    printf 'whole yes\n'
    whole::python "${place}"
  else
    whole::python
  fi
}

# whole::python [COPY] - the first Python that runs this copy of kit, or that is new enough to try it; and what python3 is.
whole::python() {
  local -r copy="${1:-}"
  local name
  for name in python3 python3.{15..9}; do
    if [[ "$("${name}" --version 2>&1)" =~ ^Python\ 3\.([0-9]+) ]] && ((BASH_REMATCH[1] >= 9)) &&
      { [[ -z "${copy}" ]] || "${name}" "${copy}" --version >/dev/null 2>&1 </dev/null; }; then
      printf 'python %s\n' "$(type -P "${name}")"
      break
    fi
  done
  printf 'version %s\n' "$(python3 --version 2>&1)"
}

# whole::old FOLDER DAYS PATTERN - sets whole_old to what kit made in the folder, has such a name, and is as old.
whole::old() {
  local found
  whole_old=()
  while IFS= read -r -d '' found; do
    [[ ! -f "${found}/${login_mark}" ]] || whole_old+=("${found}")
  done < <(find "$1" -mindepth 1 -maxdepth 1 -type d -mtime "+$2" -regextype posix-extended -regex ".*/$3" -print0)
}

# whole::settle PART PLACE - gives a copy that has come whole its name; removes those that nobody has used for a week.
whole::settle() {
  local -r part="$1" place="$2"
  if ! mv -T -- "${part}" "${place}" 2>/dev/null; then
    login::remove "${part}"
    [[ -d "${place}" ]] || return # else another one was quicker
  fi
  touch -- "${place}"
  whole::old "${place%/*}" 7 '(kit-[^/]+-[0-9a-f]{16}|\.kit-[^/]+-[0-9a-f]{16}\.[0-9a-f]{8})'
  login::remove "${whole_old[@]}"
  whole::python "${place}"
}

# whole::write FILE - its input becomes the file, in a folder that kit made or makes now.
whole::write() {
  login::make_marked "${1%/*}" && cat >"$1"
}

# whole::call PLACE PYTHON KIT FOLDER ARG... - a command of kit, at the end of PLACE/call.sh: nothing of PLACE is left.
whole::call() {
  local -r place="$1" python="$2" kit="$3" folder="$4"
  local status=0
  shift 4
  # shellcheck disable=SC2064  # as it is now: the function is over then
  trap "login::remove $(printf '%q' "${place}")" EXIT
  type -P sbatch >/dev/null || login::profile
  mkdir -p -- "${folder}" && cd -- "${folder}" || return
  "${python}" "${kit}" "$@" || status=$?
  return "${status}"
}

# whole::note_run RUN - its input, a line of kit's history, unless the run directory is in it already.
whole::note_run() {
  local -r history="${XDG_STATE_HOME:-${HOME}/.local/state}/kit/runs.jsonl"
  grep -qsF -- "$1" "${history}" && return
  mkdir -p -- "${history%/*}" && cat >>"${history}"
}

# ---------------------------------------------------------------- builds

# whole::state PLACE - `running`, `ended CODE`, `gone` where it was killed, or `nothing`.
whole::state() {
  local -r place="$1"
  if [[ ! -e "${place}/output" || ! -f "${place}/${login_mark}" ]]; then
    printf 'nothing\n'
  elif ! whole::is_free "${place}"; then
    printf 'running\n'
  elif [[ -s "${place}/status" ]]; then
    printf 'ended %s\n' "$(<"${place}/status")"
  else
    printf 'gone\n'
  fi
}

# A build holds its lock as long as it lives, on whichever login node that is.
whole::is_free() {
  local lock
  local -i status=0
  exec {lock}>"$1/.lock"
  flock --nonblock --conflict-exit-code 75 "${lock}" || status=$?
  exec {lock}>&-
  ((status != 75))
}

# whole::begin PLACE - starts PLACE/call.sh apart from the connection, unless it runs.
whole::begin() {
  local -r place="$1"
  local old
  whole::old "${place%/*}" 2 '[^/]+-[0-9a-f]{16}'
  for old in "${whole_old[@]}"; do
    if whole::is_free "${old}"; then login::remove "${old}"; fi
  done
  cd -- "${place}" || return
  exec {whole_lock}>.lock
  flock --timeout 2 --conflict-exit-code 75 "${whole_lock}" || (($? != 75)) || return 0
  rm -f -- status stop
  : >output
  # It inherits the lock, and is the leader of a group that can be ended whole.
  setsid bash call.sh >output 2>&1 </dev/null &
}

# whole::build PLACE PYTHON KIT FOLDER ARG... - what call.sh ends with: the build, until it ends or PLACE/stop is there.
whole::build() {
  local -r place="$1" python="$2" kit="$3" folder="$4"
  local -i status=0 stopping=0
  shift 4
  trap : TERM
  type -P sbatch >/dev/null || login::profile
  cd -- "${folder}" || return
  "${python}" "${kit}" "$@" &
  local -r build="$!"
  while kill -0 "${build}" 2>/dev/null; do
    if [[ -e "${place}/stop" ]]; then
      ((stopping != 0)) || kill -TERM -- "-$$"
      ((stopping != 100)) || kill -KILL -- "${build}"
      stopping+=1
    fi
    sleep 0.2
  done
  wait "${build}" || status=$?
  printf '%d\n' "${status}" >"${place}/status.new"
  mv -T -- "${place}/status.new" "${place}/status"
}

# whole::follow PLACE BYTES - its state, and what it has said after so many bytes; waits some seconds for either to change.
whole::follow() {
  local state
  local -i turn
  for ((turn = 0; turn < 20; turn++)); do
    state="$(whole::state "$1")"
    if [[ "${state}" != running ]] || (($(stat --format=%s -- "$1/output") > $2)); then
      break
    fi
    sleep 0.2
  done
  printf '%s\n' "${state}"
  [[ ! -e "$1/output" ]] || tail --bytes="+$(($2 + 1))" -- "$1/output" | head --bytes=65536
}

# whole::stop PLACE - ends a build, and leaves nothing of it.
whole::stop() {
  local -r place="$1"
  local -i tenths=0
  [[ -d "${place}" ]] || return 0
  : >"${place}/stop"
  until whole::is_free "${place}"; do
    ((tenths++ < 300)) || return 1
    sleep 0.1
  done
  login::remove "${place}"
}

# whole::finish PLACE CODE - its end is known where it was wanted. What it read stays for another try where it failed.
whole::finish() {
  if [[ "$2" == 0 ]]; then
    login::remove "$1"
  else
    rm -f -- "$1/status" "$1/output" "$1/call.sh"
  fi
}
