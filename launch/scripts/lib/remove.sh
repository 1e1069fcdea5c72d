# remove.sh - the one place where these scripts remove a folder with what is in it.

source "${KIT_RUN_DIR}/lib/mount_table.sh"

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
  local place
  local -a places options
  mount_table::read || return
  for place in "${places[@]}"; do [[ "${place}/" != "$1"/* ]] || return; done
}
