#!/usr/bin/env bash
# Runs every test, several files at a time. The images of the Slurm clusters are made meanwhile.
#
#   run.sh [PYTEST-OPTION... | PATH...]
#
# Where root calls it, what needs neither root nor a cluster is run by an ordinary user, as kit itself mostly is, and the rest
# afterwards by root. With options or paths, all that they choose is run once, by whoever calls.
#
# KIT_TEST_WORKERS   how many files at a time (5); tests of Slurm mostly wait, so this is more than there are cores
set -euo pipefail
cd -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/.."

readonly USERS=(tests/unit tests/images)
readonly MOST_FLAKES=3
readonly NEEDS_GB=20 # in /tmp, with what the clusters hold, if they are on the same disk
OPTIONS=(--numprocesses "${KIT_TEST_WORKERS:-5}" --durations 10)
PYTHON="$(command -v python3)"

if (($# > 0)); then
  exec pytest "${OPTIONS[@]}" "$@"
fi

folder="$(mktemp -d "/tmp/kit tests of.XXXXXX")"
trap 'rm -rf -- "${folder}"' EXIT
chmod 755 "${folder}"
code=0

# by_me and by_another PYTEST-ARGUMENT... - run pytest as this user, or as an ordinary one.
# shellcheck disable=SC2329  # part calls them
by_me() { pytest "$@"; }
# shellcheck disable=SC2329  # part calls them
by_another() { tests/ordinary_user.sh "${PYTHON}" "${folder}/tmp dir" "$@"; }

# part WHO PATH... - runs these tests. If only a few fail, they run once more with nothing beside them. A test that passes then is
# named at the end as flaky; it is still to be mended.
part() {
  local -r who="$1" failed="${folder}/$1.failed"
  local -a again=()
  local -i ended=0
  shift
  install -m 666 /dev/null "${failed}"
  KIT_TEST_FAILED="${failed}" "${who}" "${OPTIONS[@]}" "$@" || ended=$?
  ((ended != 0)) || return 0
  mapfile -t again <"${failed}"
  ((ended == 1 && ${#again[@]} >= 1 && ${#again[@]} <= MOST_FLAKES)) || return "${ended}"
  printf '\nOnce more, with nothing beside them:\n'
  "${who}" "${again[@]}" || return
  printf 'FLAKY %s: failed beside others, passed alone\n' "${again[@]}" >>"${folder}/flaky"
}

# Nodes without space are left out of jobs, and half an hour later nothing says why a test failed.
free_gb="$(df --output=avail --block-size=1G /tmp | tail -n 1)"
space=''
((free_gb >= NEEDS_GB)) || space="warning: /tmp has ${free_gb// /} GB free, and a whole run takes ${NEEDS_GB}: tests may fail for that"
printf '%s' "${space:+${space}$'\n'}" >&2

# A test that needs them calls the same script, waits for this call, and says what it said.
tests/cluster/images.sh all >/dev/null 2>&1 &
if (($(id -u) != 0)); then
  part by_me tests || code=1
else
  # Nobody can keep what Python compiles, and each start of kit would compile it anew.
  "${PYTHON}" -m compileall -q launch/kit
  part by_another "${USERS[@]}" | tee "${folder}/report" || code=1
  part by_me tests "${USERS[@]/#/--ignore=}" || code=1
  printf '\nWhat an ordinary user ran, with a read-only home and a space in TMPDIR:\n'
  sed -n '/ tests collected, /,$p' "${folder}/report"
fi
((code == 0)) || printf '%s' "${space:+${space}$'\n'}"
[[ ! -e "${folder}/flaky" ]] || cat -- "${folder}/flaky"
exit "${code}"
