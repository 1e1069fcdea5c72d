# mount_table.sh - what is mounted on this node, as its kernel says.

# mount_table::read - sets the caller's `places` to where something is mounted, and `options` to that mount's own options, by the same
# numbers. Fails where the kernel does not say. It reads at once: `read` finds the table changed, and parts of lines, where something is
# mounted meanwhile.
mount_table::read() {
  local line place
  local -a lines
  places=() options=()
  mapfile -t lines </proc/self/mountinfo || return
  for line in "${lines[@]}"; do
    [[ "${line}" =~ ^([^ ]+ ){4}([^ ]+)\ ([^ ]+) ]] || return
    printf -v place '%b' "${BASH_REMATCH[2]//\\/\\0}" # the kernel writes a blank as \040, and %b reads \0040
    places+=("${place}") options+=("${BASH_REMATCH[3]}")
  done
}
