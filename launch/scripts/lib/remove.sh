# remove.sh - the one place where these scripts remove a folder with what is in it.

# remove::tree PATH NAME - removes a folder, or a file, of which the name matches NAME, a regular expression. Fails, and
# removes nothing, for another name, /, the home, a link, what belongs to somebody else, and where anything is mounted.
remove::tree() {
  local -r path="$1" name="$2"
  [[ "${path##*/}" =~ ^(${name})$ && -O "${path}" && ! -L "${path}" ]] || return
  [[ ! "${path}" -ef / && ! "${path}" -ef "${HOME:-/}" ]] || return
  remove::has_no_mount "$(readlink -f -- "${path}")" || return
  [[ ! -d "${path}" ]] || chmod -R u+rwX -- "${path}" || true # some have folders that their owner may not write to
  # rm of busybox has no such option: it would remove nothing.
  local -a options=(--one-file-system)
  rm -f "${options[@]}" 2>/dev/null || options=()
  rm -rf "${options[@]}" -- "${path}"
}

# remove::has_no_mount PATH - nor is one; rm and mountpoint tell other file systems alone, not other folders of the same one.
remove::has_no_mount() {
  local line point
  local -a mounts
  mapfile -t mounts </proc/self/mountinfo || return # at once: `read` finds it changed, and parts of lines, where something is mounted meanwhile
  for line in "${mounts[@]}"; do
    [[ "${line}" =~ ^([^ ]+ ){4}([^ ]+)\  ]] || return
    printf -v point '%b' "${BASH_REMATCH[2]//\\/\\0}" # the kernel writes a blank as \040, and %b reads \0040
    [[ "${point}/" != "$1"/* ]] || return
  done
}
