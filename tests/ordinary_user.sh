#!/usr/bin/env bash
# Runs tests as a user who is not root, whose home cannot be written, and whose TMPDIR has a space. Only root can.
#
#   ordinary_user.sh PYTHON TMPDIR PYTEST-OPTION...
#
# The interpreter or the checkout may lie in root's own home, which no other user can enter: then an empty folder takes
# that home's place, in a mount namespace of this script, and in it is only what is needed.
set -euo pipefail
readonly python="$1" tmpdir="$2" user=65534 # nobody
shift 2

if [[ "${1:-}" != --inside ]]; then
  exec unshare --mount -- "$0" "${python}" "${tmpdir}" --inside "$@"
fi
shift

checkout="$(dirname -- "$(dirname -- "$(readlink -f -- "$0")")")"
base="$("${python}" -c 'import sys; print(sys.base_prefix)')"
readonly checkout base

as_user() {
  setpriv --reuid "${user}" --regid "${user}" --clear-groups "$@"
}

# open_home FOLDER... - puts an empty folder in the place of /root, or another one at the top, and these folders in it.
open_home() {
  local -r top="/$(cut -d / -f 2 <<<"$1")"
  local folder held
  held="$(mktemp -d)"
  mount --bind "${top}" "${held}"
  mount -t tmpfs -o mode=755 none "${top}"
  for folder in "$@"; do
    [[ "${folder}" == "${top}"/* ]] || continue
    mkdir -p "${folder}"
    mount --bind "${held}${folder#"${top}"}" "${folder}"
  done
  umount "${held}"
}

as_user test -x "${base}/bin" || open_home "${base}" "${checkout}"
as_user test -r "${checkout}/pyproject.toml" || open_home "${checkout}"
install -d -o "${user}" -g "${user}" "${tmpdir}" "${tmpdir}/home"
chmod 500 "${tmpdir}/home"
exec setpriv --reuid "${user}" --regid "${user}" --clear-groups env -u XDG_CONFIG_HOME -u XDG_DATA_HOME -u XDG_RUNTIME_DIR \
  HOME="${tmpdir}/home" USER=nobody LOGNAME=nobody TMPDIR="${tmpdir}" PYTHONDONTWRITEBYTECODE=1 \
  GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0="${checkout}" \
  "${python}" -m pytest -p no:cacheprovider "$@"
