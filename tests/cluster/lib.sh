# shellcheck shell=bash
# What engine.sh, images.sh and cluster.sh share: messages, and how Docker is called.

# The engine's own builder: the client on PATH may be newer than the engine and lack buildx.
export DOCKER_BUILDKIT=0

say() {
  printf '%s: %s\n' "${0##*/}" "$*" >&2
}

die() {
  local -r problem="$1" fix="$2" status="${3:-1}"
  printf '%s: %s\n  fix: %s\n' "${0##*/}" "${problem}" "${fix}" >&2
  exit "${status}"
}

need() {
  local -r tool="$1" fix="$2"
  command -v "${tool}" >/dev/null || die "${tool} is not on PATH" "${fix}"
}

lib::cache() {
  printf '%s\n' "${KIT_CACHE:-${HOME}/.cache/kit-tests}"
}

# The Debian release that controller and nodes are made of, by which the cluster has its Slurm; and their images.
# shellcheck disable=SC2034  # for the files that source this one
readonly lib_debian="${KIT_CLUSTER_DEBIAN:-trixie}"
lib_suffix="-${lib_debian}"
[[ "${lib_debian}" != trixie ]] || lib_suffix=''
# Two checkouts share one engine: a cluster with real packages must not start on the other's images with stubs.
! compgen -G "${KIT_CLUSTER_DEBS:-$(dirname -- "${BASH_SOURCE[0]}")/debs}/*.deb" >/dev/null || lib_suffix+=-with-debs
# shellcheck disable=SC2034  # likewise
readonly lib_node="kit-test/node${lib_suffix}" lib_controller="kit-test/controller${lib_suffix}"

# Runs the rest of the caller while no other process of this user is doing the same.
lib::lock() {
  local -r name="$1" wait_s="$2"
  mkdir -p "$(lib::cache)"
  exec {lib_locked}>"$(lib::cache)/${name}.lock"
  flock -w "${wait_s}" "${lib_locked}" ||
    die "${name}: another process held its lock for ${wait_s} s" "wait for it, or end it"
}

# What Apptainer, squashfuse and user namespaces need of a container, as an ordinary user too.
# Not --privileged: that does not start where the host lacks CAP_SYS_RESOURCE.
# shellcheck disable=SC2034  # for the files that source this one
readonly lib_caps=(
  --cap-add SYS_ADMIN --cap-add SYS_PTRACE --cap-add SYS_NICE --cap-add NET_ADMIN
  --cap-add IPC_LOCK --cap-add DAC_READ_SEARCH --cap-add SYSLOG
  --security-opt seccomp=unconfined --security-opt apparmor=unconfined
  --security-opt systempaths=unconfined --device /dev/fuse
)
