#!/usr/bin/env bash
# collect.sh - what jobs of this user left on this node and no job needs: containers, copies of images, and compile caches.
#
#   collect.sh list DAYS SCRATCH                    a line for each: node, KiB, days since its last use, path
#   collect.sh remove DAYS SCRATCH NODE:PATH...     removes those of this node that still are not needed
set -euo pipefail +o posix +o noclobber && shopt -u failglob

source "${KIT_RUN_DIR}/lib/messages.sh"
source "${KIT_RUN_DIR}/lib/kept_container.sh"
source "${KIT_RUN_DIR}/lib/runtimes.sh"

# Names that only kit gives: of containers, of folders with compile caches, and of copies of images, which are 16 digits of their content, too.
readonly collect_names="\.?${KIT_CONTAINER_PATTERN}(\.unfinished|\.stale)?|\.?${KIT_CACHE_PATTERN}(\.unfinished|\.stale)?|[0-9a-f]{16}\.(sif|sqsh|squashfs)(\.unfinished)?|\.[0-9a-f]{16}\.[0-9_]+\.received"

# This user's folders with containers, copies of images, compile caches and packages.
collect::folders() {
  local folder
  {
    runtimes::ask runtime::folders
    printf '%s\n' "${KIT_SCRATCH}/kit-${UID}/"{images,cache,packages}
  } | sort -u | while read -r folder; do
    [[ ! -d "${folder}" || ! -O "${folder}" || -L "${folder}" ]] || printf '%s\n' "${folder}"
  done
}

# Days since a job last started with it, a container or a copy of an image.
collect::idle_days() { printf '%d' "$((($(date +%s) - $(collect::used_s "$1")) / 86400))"; }

# collect::used_s PATH - prints when that was.
collect::used_s() { stat -c %Y -- "$1/.kit-used" 2>/dev/null || stat -c %Y -- "$1/.kit-complete" 2>/dev/null || stat -c %Y -- "$1"; }

# The mounts of a process name its container. Its variables name its compile cache, and without a container its packages, by the names
# that these had at its start. A copy of an image may go while it is in use: its readers keep it.
collect::in_use() {
  local -r folder="${1%/*}"
  local name="${1##*/}"
  [[ -d "$1" ]] || return 1
  ! grep -qsF -- "${name}" /proc/[0-9]*/mountinfo || return 0
  name="${name#.}" name="${name%.stale}"
  [[ "${folder}" == */@(cache|packages) ]] && grep -qsaF -- "/${folder##*/}/${name}" /proc/[0-9]*/environ
}

# collect::locked PATH COMMAND... - runs it while no job is making PATH, else fails. What Slurm sends is for one job, which has no lock.
collect::locked() {
  if [[ "$1" == *.received ]]; then
    "${@:2}"
    return
  fi
  (flock --nonblock 9 && "${@:2}") 9>"$(kept_container::lock "$1")"
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
  local -r days="$1"
  local folder path size
  shopt -s nullglob dotglob
  while read -r folder; do
    for path in "${folder}"/*; do
      [[ "${path##*/}" =~ ^(${collect_names})$ && "${path}" != *.lock && -O "${path}" && ! -L "${path}" ]] || continue
      if ! collect::is_needed "${path}" "${days}"; then
        read -r size _ < <(du --summarize --block-size=1024 -- "${path}" 2>/dev/null || printf '0\n')
        printf '%s\t%d\t%d\t%s\n' "$(kit::node)" "${size}" "$(collect::idle_days "${path}")" "${path}"
      fi
    done
  done < <(collect::folders)
}

collect::remove() {
  local listed path
  listed="$(collect::list "$1")"
  for path in "${@:2}"; do
    [[ "${path}" == "$(kit::node):"* ]] || continue
    path="${path#*:}"
    [[ -e "${path}" ]] || continue # another `kit images gc` was faster
    if [[ $'\n'"${listed}"$'\n' != *$'\t'"${path}"$'\n'* ]] || ! collect::locked "${path}" collect::delete "${path}" "$1"; then
      kit::say "${path} is in use again, and stays"
    fi
  done
}

# collect::delete PATH DAYS - a job that comes now takes no lock where it finds what it needs: so a folder is moved away first, and then
# looked at again, as a file is. Listing and removing what came before may have taken minutes.
collect::delete() {
  local -r path="$1"
  local -ri days="$2"
  local aside="${path}"
  if [[ -d "${path}" && "${path##*/}" != .* ]]; then
    aside="${path%/*}/.${path##*/}.stale"
    [[ ! -e "${aside}" ]] || return 1
    mv --no-target-directory -- "${path}" "${aside}"
  fi
  # Mounts have the new name by now.
  if [[ "${path}" != *.@(unfinished|stale) ]] && { collect::in_use "${aside}" || (($(collect::idle_days "${aside}") < days)); }; then
    [[ "${aside}" == "${path}" ]] || mv --no-target-directory -- "${aside}" "${path}"
    return 1
  fi
  remove::tree "${aside}" "${collect_names}"
}

KIT_SCRATCH="${3:-/tmp}"
case "${1:-}" in
  list) collect::list "$2" ;;
  remove) collect::remove "$2" "${@:4}" ;;
  *) printf 'collect.sh: list or remove?\n' >&2 && exit 2 ;;
esac
