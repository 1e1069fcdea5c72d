#!/usr/bin/env bash
# Makes a virtual environment, and on Debian and Ubuntu first the package that this needs.
#
#   venv.sh FOLDER
#
# PYTHON   the interpreter to use (python3)
set -euo pipefail

readonly folder="$1" python="${PYTHON:-python3}"

die() {
  printf 'venv.sh: %s\n  fix: %s\n' "$1" "$2" >&2
  exit 1
}

command -v "${python}" >/dev/null || die "${python}: not found" "apt-get install python3, or make PYTHON=/path/to/python3"
"${python}" -c 'import sys; sys.exit(sys.version_info < (3, 9))' || die "$("${python}" --version) is too old" "use Python 3.9 or newer: make PYTHON=..."

# Debian splits ensurepip off, and without it a virtual environment has no pip.
if ! "${python}" -c 'import ensurepip' 2>/dev/null; then
  version="$("${python}" -c 'import sys; print("%d.%d" % sys.version_info[:2])')"
  if [[ "$(id -u)" != 0 ]] || ! command -v apt-get >/dev/null; then
    die "${python} cannot make virtual environments" "sudo apt-get install python${version}-venv"
  fi
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "python${version}-venv" >/dev/null
fi
"${python}" -m venv "${folder}"
# The pip that comes with an older Python takes twice as long over what the tests need.
"${folder}/bin/pip" install --quiet --disable-pip-version-check --upgrade pip
