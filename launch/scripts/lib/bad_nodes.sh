# bad_nodes.sh - nodes that cannot work are remembered for the jobs to come: `kit submit` leaves them out for a day.

# bad_nodes::note NODE PROBLEM
bad_nodes::note() {
  mkdir -p -- "${KIT_BAD_NODES%/*}" 2>/dev/null || return 0
  printf '%(%s)T %s %s\n' -1 "$1" "$2" >>"${KIT_BAD_NODES}" 2>/dev/null || true
}
