#!/usr/bin/env bash
# image_python.sh - on the machine where a job is submitted: becomes a Python program inside the job's image, by a runtime's own
# file. What the program asks comes on standard input.
#
#   KIT_RUN_DIR=launch/scripts KIT_RUNTIME=... KIT_IMAGE=... image_python.sh PROGRAM FOLDER PATH PYTHON MOUNT...
set -euo pipefail +o posix +o noclobber && shopt -u failglob

source "${KIT_RUN_DIR}/lib/messages.sh"
source "${KIT_RUN_DIR}/lib/environment.sh"
source "${KIT_RUN_DIR}/lib/program.sh"
# shellcheck source=runtimes/none.sh
source "${KIT_RUN_DIR}/runtimes/${KIT_RUNTIME}.sh"

# shellcheck disable=SC2034  # the runtime's file reads it
KIT_MOUNTS=("$2" "$2" rw)
for kit_mount in "${@:5}"; do KIT_MOUNTS+=("${kit_mount}" "${kit_mount}" ro); done
# The engines name the container by the job, and give it their standard input for commands beside the ranks.
export SLURM_JOB_ID="packages-$$" SLURM_PROCID=0 KIT_BESIDE=yes

# image_python::become PROGRAM FOLDER PATH PYTHON - inside: by the Python that starts the ranks, without what the user has in the home folder.
image_python::become() {
  local -ra KIT_ENV=(${3:+"PATH=$3"}) KIT_COMMAND=("$4")
  : >"$2/started"
  export HOME="$2" PYTHONNOUSERSITE=1
  program::find_python torch
  [[ -n "${KIT_PYTHON}" ]] || { printf 'there is no python3 or python on PATH (%s)\n' "${PATH}" && return 1; }
  exec "${KIT_PYTHON}" -c "$1" "$2"
}

{
  runtime::check
  runtime::prepare
} </dev/null
kit_functions="$(program::functions && declare -f image_python::become)"
runtime::exec bash -c "${kit_functions}; image_python::become \"\$@\"" bash "${@:1:4}"
