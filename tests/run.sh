#!/usr/bin/env bash
# Runs every test, several files at a time. The images of the Slurm clusters are made meanwhile.
#
#   run.sh [PYTEST-OPTION... | PATH...]
#
# Where root calls it, what needs neither root nor a cluster is run by an ordinary user, as kit itself mostly is, beside the rest,
# which root runs. With options or paths, all that they choose is run once, by whoever calls.
#
# KIT_TEST_WORKERS   how many files at a time (4), and half as many for the ordinary user; tests of Slurm mostly wait, so this is more
#                    than there are cores
set -euo pipefail
cd -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/.."

readonly USERS=(tests/unit tests/images)
readonly MOST_FLAKES=3
readonly NEEDS_GB=20 # in /tmp, with what the clusters hold, if they are on the same disk
readonly WORKERS="${KIT_TEST_WORKERS:-4}"
PYTHON="$(command -v python3)"

if (($# > 0)); then
  exec pytest --numprocesses "${WORKERS}" --durations 10 "$@"
fi

folder="$(mktemp -d "/tmp/kit tests of.XXXXXX")"
trap 'rm -rf -- "${folder}"' EXIT
chmod 755 "${folder}"
code=0

# by_me and by_another PYTEST-ARGUMENT... - run pytest as this user, or as an ordinary one. That one computes while the other waits
# for Slurm, and gives way to it: the tests of Slurm have limits of time.
# shellcheck disable=SC2329  # part calls them
by_me() { pytest "$@"; }
# shellcheck disable=SC2329  # part calls them
by_another() { nice -n 5 tests/ordinary_user.sh "${PYTHON}" "${folder}/tmp dir" "$@"; }

# part WHO WORKERS PATH... - runs these tests, and leaves in files how that ended and what failed.
part() {
  local -r who="$1" workers="$2"
  local -i ended=0
  shift 2
  install -m 666 /dev/null "${folder}/${who}.failed"
  KIT_TEST_FAILED="${folder}/${who}.failed" "${who}" --numprocesses "${workers}" --durations 10 "$@" || ended=$?
  printf '%s\n' "${ended}" >"${folder}/${who}.ended"
}

# second_chance WHO - how that part ended. If only a few tests failed, they run once more with nothing beside them. One that passes
# then is named at the end as flaky; it is still to be mended.
second_chance() {
  local -r who="$1"
  local -i ended
  local -a again=()
  ended="$(<"${folder}/${who}.ended")"
  ((ended != 0)) || return 0
  mapfile -t again <"${folder}/${who}.failed"
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
  part by_me "${WORKERS}" tests
else
  # Nobody can keep what Python compiles, and each start of kit would compile it anew.
  "${PYTHON}" -m compileall -q launch/kit
  part by_another "$(((WORKERS + 1) / 2))" "${USERS[@]}" 2>&1 | tee "${folder}/report" | sed --unbuffered --quiet 's/.*\(\[ *[0-9]*%\]\)$/by an ordinary user: \1/p' &
  another=$!
  part by_me "${WORKERS}" tests "${USERS[@]/#/--ignore=}"
  wait "${another}"
  printf '\nWhat an ordinary user ran, with a read-only home and a space in TMPDIR:\n'
  grep --invert-match '\[ *[0-9]*%\]$' "${folder}/report"
  second_chance by_another || code=1
fi
second_chance by_me || code=1
((code == 0)) || printf '%s' "${space:+${space}$'\n'}"
[[ ! -e "${folder}/flaky" ]] || cat -- "${folder}/flaky"
exit "${code}"
