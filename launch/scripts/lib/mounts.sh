# mounts.sh - checks that what the job mounts into its containers is on this node, and can be read. KIT_MOUNTS is a flat list of source,
# target, and ro, rw, or data for a squashfs file whose content is to appear at the target.

source "${KIT_RUN_DIR}/lib/mount_table.sh"

mounts::check() {
  local -i i
  local source needed
  for ((i = 0; i < ${#KIT_MOUNTS[@]}; i += 3)); do
    source="${KIT_MOUNTS[i]}"
    [[ -e "${source}" ]] || mounts::lack "${source}"
    needed=-r
    [[ ! -d "${source}" ]] || needed=-x # many sites have their scratch as 0711, where a user's own folder is known by its name
    test "${needed}" "${source}" ||
      kit::die "the mount source ${source} cannot be read by $(id -un)" "check its owner and mode: ls -ld '${source}'" mount-missing
    [[ -r "${source}" ]] || kit::say "$(id -un) may not list the mount source ${source}: programs find in it only what they know by name"
    [[ "${KIT_MOUNTS[i + 2]}" != data ]] || mounts::check_data "${source}"
    [[ "${KIT_MOUNTS[i + 2]}" != ro ]] || mounts::warn_if_empty "${source}"
    [[ "${KIT_MOUNTS[i + 2]}" != ro || "${KIT_RUNTIME}" == none ]] || mounts::warn_of_writable_below "${source}"
  done
}

# mounts::lack PATH - dies with the reason for which it is not seen here: it may be in a closed folder, or on a file system whose server
# is gone.
mounts::lack() {
  local why
  why="$(LC_ALL=C stat -L -- "$1" 2>&1 >/dev/null)" || true
  case "${why}" in
    '' | *': No such file or directory' | *': Not a directory')
      kit::die "the mount source $1 does not exist here" "make it on every node, or put it on a shared file system" mount-missing
      ;;
  esac
  kit::die "the mount source $1 cannot be reached here: ${why##*: }" "see where that begins: namei -l '$1'" mount-missing
}

# mounts::warn_if_empty SOURCE - where its file system is not mounted, a node has an empty folder. One that is to be written may be empty, and
# that of autofs is until somebody enters it.
mounts::warn_if_empty() {
  [[ -d "$1" && -r "$1" && -z "$(find -H "$1" -mindepth 1 -maxdepth 1 -print -quit)" && "$(stat -f -c %T -- "$1")" != autofs ]] || return 0
  kit::warn "the mount source $1 is empty here" "look whether its file system is mounted on this node: findmnt -T '$1'"
}

# mounts::warn_of_writable_below FOLDER - runtimes make the file system of a mount read-only, and leave those that are mounted
# below it as they are.
mounts::warn_of_writable_below() {
  local -i i
  local root
  local -a places options writable=()
  mount_table::read 2>/dev/null || return 0
  root="$(readlink -f -- "$1")"
  for i in "${!places[@]}"; do
    [[ "${places[i]}" != "${root%/}"/* || ",${options[i]}," == *,ro,* ]] || writable+=("${places[i]}")
  done
  ((${#writable[@]} == 0)) ||
    kit::say "only the file system of $1 itself is read-only for this job: what is mounted below it can be written, such as ${writable[0]}"
}

# mounts::check_data FILE - dies unless FILE is a squashfs file that has all of its bytes. Layout: Linux's
# Documentation/filesystems/squashfs.rst.
mounts::check_data() {
  local -r file="$1"
  local -i used size
  used="$(od -A n -t u8 -j 40 -N 8 -- "${file}")" size="$(stat -L -c %s -- "${file}")"
  # shellcheck disable=SC2015 # kit::die is to follow where either fails
  [[ "$(head -c 4 -- "${file}" | tr -d '\0')" == hsqs ]] && ((used > 96 && used <= size)) ||
    kit::die "${file} is no whole squashfs file here: it has ${size} bytes" "copy it again, or pack it again: kit images pack FOLDER" data-not-mounted
}

# mounts::try_data - dies where this node cannot mount the job's squashfs files, which a start of the container shows.
mounts::try_data() {
  local -a files=() targets=()
  local -i i
  local said
  for ((i = 0; i < ${#KIT_MOUNTS[@]}; i += 3)); do
    [[ "${KIT_MOUNTS[i + 2]}" != data ]] || files+=("${KIT_MOUNTS[i]}") targets+=("${KIT_MOUNTS[i + 1]}")
  done
  ((${#files[@]} > 0)) || return 0
  # What serves the files holds the output open, so that nothing of it is left when this goes on.
  # shellcheck disable=SC2016 # the container's shell expands it
  said="$(runtime::exec bash -c 'for folder; do cd -- "${folder}" || exit; done' bash "${targets[@]}" 2>&1 </dev/null)" ||
    kit::die "cannot mount ${files[*]} here: $(printf '%s\n' "${said}" | kit::last_line)" \
      "what this node lacks: kit doctor JOB; whether the file is sound: unsquashfs -s FILE" data-not-mounted
}
