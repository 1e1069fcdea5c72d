#!/usr/bin/env bash
# Runs every test, several files at a time. The images of the Slurm clusters are made meanwhile.
#
#   run.sh [PYTEST-OPTION... | PATH...]
#
# KIT_TEST_WORKERS   how many files at a time (4); tests of Slurm mostly wait, so this is more than there are cores
set -euo pipefail
cd -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/.."

# A test that needs them calls the same script, waits for this call, and says what it said.
if (($# == 0)); then
  tests/cluster/images.sh all >/dev/null 2>&1 &
fi
exec pytest --numprocesses "${KIT_TEST_WORKERS:-4}" --durations 10 "$@"
