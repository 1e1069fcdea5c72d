#!/usr/bin/env bash
# Installs this checkout's kit on the controller of a running cluster, offline, as the virtual environment /opt/kit. It is
# made once for each state of the checkout, in a container of the controller's image, and kept as an archive.
#
#   install.sh             on the controller of KIT_CLUSTER_NAME
#   install.sh prepare     only makes the archive
#
# KIT_CLUSTER_NAME, KIT_CLUSTER_DEBIAN and KIT_CACHE as for cluster.sh.
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

# One line for all that the environment is made from.
install::key() {
  {
    docker image inspect --format '{{.Id}}' "${lib_controller}"
    sed -n '/^install::make/,/^}/p' "${BASH_SOURCE[0]}"
    cd "${repo}"
    find pyproject.toml README.md LICENSE Dockerfile launch containers env train -type f ! -path '*/__pycache__/*' \
      ! -path '*/wheels/*' -print0 | LC_ALL=C sort -z | xargs -0 sha256sum
  } | sha256sum | cut -c 1-12
}

# Prints a folder with the wheels of all that kit needs, for the controller's Python.
install::dependencies() {
  local -r wheel="$1"
  local python key dir
  python="$(docker run --rm --network none --entrypoint python3 "${lib_controller}" \
    -c 'import sys; print("%d.%d" % sys.version_info[:2])')"
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

# Writes the archive of /opt/kit.
install::make() {
  local -r archive="$1"
  local dependencies
  local -a wheels
  work="$(mktemp -d -p "${cache}" install.XXXXXX)"
  install::pip wheel --no-deps --wheel-dir "${work}" "${repo}"
  wheels=("${work}"/slurm_container_kit-*.whl)
  dependencies="$(install::dependencies "${wheels[0]}")"
  # shellcheck disable=SC2016  # the container's shell expands it
  docker run --rm --network none --volume "${work}:/kit:ro" --volume "${dependencies}:/wheels:ro" \
    --entrypoint bash "${lib_controller}" -euc '
        python3 -m venv /opt/kit
        /opt/kit/bin/pip install --quiet --no-index --find-links /wheels /kit/*.whl >&2
        chmod -R go=u-w /opt/kit
        printf "%s\n" "$1" >/opt/kit/key
        tar -C /opt -c kit' bash "${archive##*/}" >"${work}/archive" ||
    die "kit cannot be installed in a container of ${lib_controller}" "see the lines above"
  mv "${work}/archive" "${archive}"
}

# Makes the archive when there is none for this state of the checkout.
install::prepare() {
  local -r archive="$1"
  mkdir -p "${cache}/kit-trees"
  if [[ ! -f "${archive}" ]]; then
    lib::lock install 600
    [[ -f "${archive}" ]] || install::make "${archive}"
    find "${cache}/kit-trees" -type f -mtime +2 -delete
  fi
}

install::main() {
  local archive
  [[ -f "${repo}/pyproject.toml" ]] || die "${repo}/pyproject.toml: no such file" "use a whole checkout"
  archive="${cache}/kit-trees/$(install::key)"
  install::prepare "${archive}"
  [[ "${1:-}" != prepare ]] || return 0
  docker container inspect "${controller}" >/dev/null 2>&1 ||
    die "no container ${controller}" "${here}/cluster.sh up"
  # shellcheck disable=SC2016  # the container's shell expands it
  docker exec --interactive "${controller}" bash -euc '
        [[ "$(cat /opt/kit/key 2>/dev/null)" != "$1" ]] || exit 0
        rm -rf /opt/kit
        tar -C /opt -x
        ln -sf /opt/kit/bin/kit /usr/local/bin/kit' bash "${archive##*/}" <"${archive}"
  say "kit ${archive##*/} is installed on ${controller}"
}

install::main "$@"
