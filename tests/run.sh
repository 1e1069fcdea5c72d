#!/usr/bin/env bash
# Runs every test, in two halves at the same time: those on the Slurm cluster mostly wait, and the others mostly compute.
#
#   run.sh [PYTEST-OPTION...]
#
# The cluster's tests are seen while they run, and the others when both have ended. Exit status: 0 where all passed.
set -euo pipefail
cd -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/.."

said="$(mktemp -t kit-tests.XXXXXX)"
readonly said

# A terminal's Ctrl-C reaches all of them by itself; this is for a signal to this script alone.
# shellcheck disable=SC2329 # the trap calls it
run::end() {
  if [[ -n "${others}" ]]; then
    kill -TERM "${others}" 2>/dev/null || true
  fi
  rm -f -- "${said}"
}

others=""
trap run::end EXIT
trap 'exit 143' TERM
trap 'exit 130' INT

failed=0
# They take what the cluster's leave, whose time limits are Slurm's.
nice -n 10 pytest tests/unit tests/bash tests/train "$@" >"${said}" 2>&1 &
others="$!"
pytest tests/cluster "$@" || failed=1
wait "${others}" || failed=1
others=""
cat -- "${said}"
exit "${failed}"
