#!/usr/bin/env bash
# jupyter.sh - starts Jupyter in the container, for `kit shell --jupyter`, and says how to reach it.
#
#   jupyter.sh ADDRESS [USER@LOGIN]    ADDRESS: where this node listens; the tunnel is through LOGIN
#
# Who has the token can run anything here as this user. So it is in this process's environment and
# in a file, both the user's alone, and in no argument. Jupyter's log, which could name it, is the
# user's alone, too.
set -euo pipefail +o posix +o noclobber && shopt -u failglob
umask 077

source "${KIT_RUN_DIR}/lib/messages.sh"
source "${KIT_RUN_DIR}/lib/network.sh"
source "${KIT_RUN_DIR}/lib/remove.sh"

# shellcheck disable=SC2034  # lib/events.sh reads it
KIT_EVENTS='' # a rank's, where one has called kit: its failure would be noted as that of a node

jupyter::find() {
  local name
  for name in jupyter-lab jupyter-notebook jupyter-server; do
    ! command -v "${name}" || return 0
  done
  local -r names='jupyter-lab, jupyter-notebook, jupyter-server'
  kit::die "there is no Jupyter in the container (looked for ${names})" \
    "start it with \`--packages jupyterlab\`, or build an image that has it (docs/interactive.md)"
}

# jupyter::find_files PROGRAM - Jupyter looks for its pages and settings beside Python. As one of the job's `packages` it has them beside its
# modules.
jupyter::find_files() {
  local -r folder="${1%/bin/*}"
  [[ ":${PYTHONPATH:-}:" == *":${folder}:"* ]] || return 0
  export JUPYTERLAB_DIR="${JUPYTERLAB_DIR:-${folder}/share/jupyter/lab}"
  export JUPYTER_PATH="${JUPYTER_PATH:+${JUPYTER_PATH}:}${folder}/share/jupyter"
  export JUPYTER_CONFIG_PATH="${JUPYTER_CONFIG_PATH:+${JUPYTER_CONFIG_PATH}:}${folder}/etc/jupyter"
}

# jupyter::end - Jupyter's own files have the token, too.
jupyter::end() {
  trap '' INT TERM HUP
  kill -TERM "${jupyter_pid}" 2>/dev/null || true
  wait "${jupyter_pid}" 2>/dev/null || true
  remove::tree "${JUPYTER_RUNTIME_DIR}" 'kit-jupyter\..{6}' || true
  rm -f -- "${url_file}"
}

jupyter::main() {
  local -r address="$1" login="${2:-}"
  local program port
  program="$(jupyter::find)" || exit 1
  jupyter::find_files "${program}"
  port="$(net::port "${SLURM_JOB_ID}" 1 "${address}")" || exit 1 # 0 is where the ranks meet
  JUPYTER_TOKEN="$(head -c 24 /dev/urandom | od -An -v -tx1 | tr -d ' \n')"
  JUPYTER_RUNTIME_DIR="$(mktemp -d "${TMPDIR:-/tmp}/kit-jupyter.XXXXXX")"
  export JUPYTER_TOKEN JUPYTER_RUNTIME_DIR
  url_file="${KIT_LOG_DIR}/jupyter.url"
  local -r log="${KIT_LOG_DIR}/jupyter.log"
  printf 'http://127.0.0.1:%d/?token=%s\n' "${port}" "${JUPYTER_TOKEN}" >"${url_file}"
  local -a options=(--no-browser --ip="${address}" --port="${port}" --ServerApp.port_retries=0)
  ((UID != 0)) || options+=(--allow-root)
  # A group of its own: Ctrl-C is for this script, since Jupyter would ask whether it is meant.
  set -m
  "${program}" "${options[@]}" </dev/null >"${log}" 2>&1 &
  jupyter_pid=$!
  set +m
  trap jupyter::end EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM HUP
  jupyter::wait "${address}" "${port}" "${log}"
  jupyter::explain "${address}" "${port}" "${login}"
  wait "${jupyter_pid}" || jupyter::failed "${log}"
}

# jupyter::wait ADDRESS PORT LOG - until it answers; importing it from a cold image takes its time.
jupyter::wait() {
  local -ri begin_s=SECONDS
  until net::is_listening "$1" "$2"; do
    kill -0 "${jupyter_pid}" 2>/dev/null || jupyter::failed "$3"
    ((SECONDS - begin_s < 120)) ||
      kit::die "Jupyter does not answer after 120 s" "what it says: $3"
    sleep 0.2
  done
}

jupyter::failed() {
  tail -n 5 -- "$1" | sed "s/${JUPYTER_TOKEN}/(token)/g; s/^/  | /" >&2
  kit::die "Jupyter has ended" "its last lines are above; all of them: $1"
}

jupyter::explain() {
  printf 'kit: Jupyter runs on %s; Ctrl-C ends it, and the job\n' "${SLURMD_NODENAME:-${HOSTNAME}}"
  [[ -z "$3" ]] || printf '  on your own machine:  ssh -N -L %d:%s %s\n' "$2" "$(net::endpoint "$1" "$2")" "$3"
  if [[ -t 1 ]]; then
    printf '  then open:            %s\n' "$(<"${url_file}")"
  else # this output may be a log
    printf '  then open the address in %s, which is yours alone to read\n' "${url_file}"
  fi
}

jupyter::main "$@"
