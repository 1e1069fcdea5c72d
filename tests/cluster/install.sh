#!/usr/bin/env bash
# Installs this checkout's kit on the controller of a running cluster, offline: wheels are built
# and downloaded here, and go into the virtual environment /opt/kit there.
#
#   install.sh
#
# KIT_CLUSTER_NAME and KIT_CACHE as for cluster.sh.
set -euo pipefail
here="$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")"
# shellcheck source=tests/cluster/lib.sh
source "${here}/lib.sh"

readonly repo="${here%/tests/cluster}"
readonly controller="${KIT_CLUSTER_NAME:-kit}-ctl"
cache="$(lib::cache)"
readonly cache

work=""
install::cleanup() {
  [[ -z "${work}" ]] || rm -rf "${work}"
}
trap install::cleanup EXIT

install::pip() {
  local -r log="${cache}/install-pip.log"
  python3 -m pip --quiet --disable-pip-version-check "$@" >"${log}" 2>&1 ||
    die "pip $1 failed" "read ${log}"
}

# Prints a folder with the wheels of all that kit needs, for the controller's Python.
install::dependencies() {
  local -r wheel="$1"
  local python key dir
  python="$(docker exec "${controller}" python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')"
  key="${python}-$(sha256sum <"${repo}/pyproject.toml" | cut -c 1-12)"
  dir="${cache}/kit-wheels/${key}"
  if [[ ! -d "${dir}" ]]; then
    say "downloading the dependencies for Python ${python}"
    install::pip download --only-binary=:all: --python-version "${python}" \
      --dest "${work}/dependencies" "${wheel}"
    rm "${work}/dependencies/${wheel##*/}"
    mkdir -p "${cache}/kit-wheels"
    mv -T "${work}/dependencies" "${dir}"
  fi
  printf '%s\n' "${dir}"
}

install::main() {
  local -a wheels
  local dependencies
  docker container inspect "${controller}" >/dev/null 2>&1 ||
    die "no container ${controller}" "${here}/cluster.sh up"
  [[ -f "${repo}/pyproject.toml" ]] || die "${repo}/pyproject.toml: no such file" "use a whole checkout"
  mkdir -p "${cache}"
  lib::lock install 300
  work="$(mktemp -d -p "${cache}" install.XXXXXX)"
  install::pip wheel --no-deps --wheel-dir "${work}" "${repo}"
  wheels=("${work}"/slurm_container_kit-*.whl)
  dependencies="$(install::dependencies "${wheels[0]}")"

  docker exec "${controller}" rm -rf /opt/kit-wheels
  docker cp "${dependencies}" "${controller}:/opt/kit-wheels"
  docker cp "${wheels[0]}" "${controller}:/opt/kit-wheels/"
  docker exec "${controller}" bash -euc '
        [[ -x /opt/kit/bin/pip ]] || python3 -m venv /opt/kit
        # The version stays the same while the code changes: take kit itself anew.
        /opt/kit/bin/pip install --quiet --no-index --find-links /opt/kit-wheels slurm-container-kit
        /opt/kit/bin/pip install --quiet --no-index --force-reinstall --no-deps /opt/kit-wheels/slurm_container_kit-*.whl
        chmod -R go=u-w /opt/kit
        ln -sf /opt/kit/bin/kit /usr/local/bin/kit'
  say "installed ${wheels[0]##*/} on ${controller}"
}

install::main "$@"
