# shellcheck shell=bash
# mounts.sh - checks that what the job mounts into its containers is on this node, and can be read. KIT_MOUNTS is a flat list of source,
# target, and ro or rw.

mounts::check() {
  local -i i
  local source
  for ((i = 0; i < ${#KIT_MOUNTS[@]}; i += 3)); do
    source="${KIT_MOUNTS[i]}"
    [[ -e "${source}" ]] ||
      kit::die "the mount source ${source} does not exist here" "make it on every node, or put it on a shared file system" mount-missing
    [[ -r "${source}" && (! -d "${source}" || -x "${source}") ]] ||
      kit::die "the mount source ${source} cannot be read by $(id -un)" "check its owner and mode: ls -ld '${source}'" mount-missing
    [[ "${KIT_MOUNTS[i + 2]}" != ro || "${KIT_RUNTIME}" == none ]] || mounts::warn_of_writable_below "${source}"
  done
}

# mounts::warn_of_writable_below FOLDER - runtimes make the file system of a mount read-only, and leave those that are mounted
# below it as they are.
mounts::warn_of_writable_below() {
  local root place options
  local -a writable=()
  [[ -r /proc/self/mountinfo ]] || return 0
  root="$(readlink -f -- "$1")"
  while read -r _ _ _ _ place options _; do
    printf -v place '%b' "${place//\\/\\0}" # the kernel writes a blank as \040, and %b reads \0040
    [[ "${place}" != "${root%/}"/* || ",${options}," == *,ro,* ]] || writable+=("${place}")
  done </proc/self/mountinfo
  ((${#writable[@]} == 0)) ||
    kit::say "only the file system of $1 itself is read-only for this job: what is mounted below it can be written, such as ${writable[0]}"
}
