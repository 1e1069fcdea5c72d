#!/usr/bin/env bash
# Runs every test, several files at a time. The images of the Slurm clusters are made meanwhile.
#
#   run.sh [PYTEST-OPTION... | PATH...]
#
# Where root calls it, what needs neither root nor a cluster is run by an ordinary user, as kit itself mostly is, and the rest
# afterwards by root. With options or paths, all that they choose is run by whoever calls.
#
# KIT_TEST_WORKERS   how many files at a time (4); tests of Slurm mostly wait, so this is more than there are cores
set -euo pipefail
cd -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/.."

readonly USERS=(tests/unit tests/images)
OPTIONS=(--numprocesses "${KIT_TEST_WORKERS:-4}" --durations 10)
PYTHON="$(command -v python3)"

if (($# > 0)); then
  exec pytest "${OPTIONS[@]}" "$@"
fi

# A test that needs them calls the same script, waits for this call, and says what it said.
tests/cluster/images.sh all >/dev/null 2>&1 &
if (($(id -u) != 0)); then
  exec pytest "${OPTIONS[@]}" tests
fi

code=0
folder="$(mktemp -d "/tmp/kit tests of.XXXXXX")"
trap 'rm -rf -- "${folder}"' EXIT
chmod 755 "${folder}"
# Nobody can keep what Python compiles, and each start of kit would compile it anew.
"${PYTHON}" -m compileall -q launch/kit
tests/ordinary_user.sh "${PYTHON}" "${folder}/tmp dir" "${OPTIONS[@]}" "${USERS[@]}" | tee "${folder}/report" || code=1
pytest "${OPTIONS[@]}" tests "${USERS[@]/#/--ignore=}" || code=1
printf '\nWhat an ordinary user ran, with a read-only home and a space in TMPDIR:\n'
sed -n '/ tests collected, /,$p' "${folder}/report"
exit "${code}"
