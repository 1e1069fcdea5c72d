#!/usr/bin/env bash
# collect.sh - what jobs of this user left on this node and no job needs: containers and copies of images.
#
#   collect.sh list DAYS SCRATCH                    a line for each: node, KiB, days since its last use, path
#   collect.sh remove DAYS SCRATCH NODE:PATH...     removes those of this node that still are not needed
set -euo pipefail +o posix

# shellcheck source=remove.sh
source "${KIT_SCRIPTS}/remove.sh"

collect::node() { printf '%s' "${SLURMD_NODENAME:-${HOSTNAME}}"; }

# The folders in which kit makes containers, and the one with copies of images; only those that are this user's.
collect::folders() {
  local -r scratch="$1"
  local site folder
  site="$(env -u ENROOT_DATA_PATH enroot info 2>/dev/null | sed -n 's/^ *ENROOT_DATA_PATH=//p' || true)"
  for folder in "${scratch}/kit-${UID}/enroot/data" "${scratch}/kit-${UID}/images" ${ENROOT_DATA_PATH:+"${ENROOT_DATA_PATH}"} "${site}"; do
    [[ ! -d "${folder}" || ! -O "${folder}" || -L "${folder}" ]] || printf '%s\n' "${folder}"
  done | sort -u
}

# Names that only kit gives: 16 digits of an image's content.
readonly collect_names='\.?(pyxis_)?kit-[0-9a-f]{16}(\.unfinished|\.stale)?|[0-9a-f]{16}\.(sif|sqsh|squashfs)(\.unfinished)?'
collect::is_ours() { [[ "${1##*/}" =~ ^(${collect_names})$ ]]; }

# Days since a job last started with it: prepare touches a container's stamp, or the copy of the image.
collect::idle_days() {
  local -r path="$1"
  local used_s
  used_s="$(stat -c %Y -- "${path}/.kit-complete" 2>/dev/null || stat -c %Y -- "${path}")"
  printf '%d' "$((($(date +%s) - used_s) / 86400))"
}

# A process in a container has it among its mounts; a copy of an image that is in use may go, its readers keep it.
collect::in_use() { [[ -d "$1" ]] && grep -qsF "${1##*/}" /proc/[0-9]*/mountinfo; }

# collect::locked PATH COMMAND... - runs it while no job is making PATH, else fails.
collect::locked() {
  local name="${1##*/}"
  local -r folder="${1%/*}"
  name="${name#.}"
  name="${name%.unfinished}"
  name="${name%.stale}"
  (flock --nonblock 9 && "${@:2}") 9>"${folder}/.${name}.lock"
}

collect::is_needed() {
  local -r path="$1"
  local -ri days="$2"
  ! collect::in_use "${path}" || return 0
  case "${path}" in
    *.unfinished | *.stale) ! collect::locked "${path}" true ;;
    *) (($(collect::idle_days "${path}") < days)) ;;
  esac
}

collect::list() {
  local -r days="$1" scratch="$2"
  local folder path size
  shopt -s nullglob dotglob
  while read -r folder; do
    for path in "${folder}"/*; do
      if collect::is_ours "${path}" && [[ -O "${path}" && ! -L "${path}" ]] && ! collect::is_needed "${path}" "${days}"; then
        read -r size _ < <(du --summarize --block-size=1024 -- "${path}" 2>/dev/null || printf '0\n')
        printf '%s\t%d\t%d\t%s\n' "$(collect::node)" "${size}" "$(collect::idle_days "${path}")" "${path}"
      fi
    done
  done < <(collect::folders "${scratch}")
}

collect::remove() {
  local -r days="$1" scratch="$2"
  local listed path
  listed="$(collect::list "${days}" "${scratch}")"
  for path in "${@:3}"; do
    [[ "${path}" == "$(collect::node):"* ]] || continue
    path="${path#*:}"
    if [[ $'\n'"${listed}"$'\n' != *$'\t'"${path}"$'\n'* ]] || ! collect::locked "${path}" collect::delete "${path}"; then
      printf 'kit: %s: %s is in use again, and stays\n' "$(collect::node)" "${path}" >&2
    fi
  done
}

# A job that comes now takes no lock where it finds a container: so it is moved away first, and looked at again.
collect::delete() {
  local -r path="$1"
  local aside="${path}"
  if [[ -d "${path}" && "${path##*/}" != .* ]]; then
    aside="${path%/*}/.${path##*/}.stale"
    [[ ! -e "${aside}" ]] || return 1
    mv --no-target-directory -- "${path}" "${aside}"
    if collect::in_use "${aside}"; then # whose mounts have the new name by now
      mv --no-target-directory -- "${aside}" "${path}"
      return 1
    fi
  fi
  chmod -R u+rwX -- "${aside}" # images have folders that their owner may not write
  remove::tree "${aside}" "${collect_names}"
}

case "${1:-}" in
  list) collect::list "${@:2}" ;;
  remove) collect::remove "${@:2}" ;;
  *) printf 'collect.sh: list or remove?\n' >&2 && exit 2 ;;
esac
