# xids.sh - GPUs that have to be reset before they are used again, by what NVIDIA's driver wrote into the kernel's log. Most Xids
# are errors of a program, and say nothing of the node.
# only: KIT_HEALTH

# After these NVIDIA's catalogue has the GPU reset or the machine started again: by its column "Immediate Action", and for 48 and
# 74 by its text (https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html). Not here: what programs cause (13, 31, 43,
# 45), what was contained, counted or repaired (63, 92, 94), a link that was put to sleep (155), and what only Xid 154, the
# driver's own conclusion, tells apart (144 to 150).
readonly KIT_XIDS='46 48 62 64 74 79 95 109 110 119 120 136 140 143 151 156 158'
readonly KIT_XID_S=86400 # a reset leaves no trace in the log, and kit leaves out a bad node for a day: then it has another chance

# xids::find BUS... - prints a problem for each of these GPUs that had such an Xid, and has not been put right since: by a boot, with
# which the log begins, by a new start of the driver, or, as Xid 154 says, by what the driver has asked for.
xids::find() {
  local log bus seconds
  local -a own=()
  (($# > 0)) || return 0
  log="$(xids::log)" || { event::note kernel_log_unread && return; }
  read -r seconds _ </proc/uptime
  for bus; do own+=("$(xids::address "${bus}")"); done
  LC_ALL=C awk -v own="${own[*]}" -v bad=" ${KIT_XIDS} " -v since="$((${seconds%.*} - KIT_XID_S))" '
    /NVRM: loading NVIDIA/ { split("", last); next }
    match($0, /NVRM: Xid \((PCI:)?[0-9a-fA-F:]+\): [0-9]+/) {
      bus = tolower(substr($0, RSTART, RLENGTH)); sub(/.*\((pci:)?/, "", bus)
      xid = bus; sub(/\).*/, "", bus); sub(/.* /, "", xid)
      at = $0; sub(/^[^[]*\[ */, "", at)
      if (xid == 154 && / to 0x0 /) delete last[bus]
      else if (at + 0 >= since && (xid == 154 || index(bad, " " xid " "))) last[bus] = xid
    }
    END { for (i = split(own, gpu, " "); i > 0; i--) if (gpu[i] in last) printf "has GPU %s with Xid %d in the kernel log\n", gpu[i], last[gpu[i]] }
  ' < <(printf '%s\n' "${log}")
}

# xids::address BUS - prints what the log calls a GPU: 0000:3b:00 for 00000000:3B:00.0.
xids::address() {
  local -r bus="${1,,}"
  local -r place="${bus#*:}"
  printf '%04x:%s' "0x${bus%%:*}" "${place%.*}"
}

# xids::log - prints what the driver wrote since the boot. Fails where this user may read neither the kernel's buffer nor the
# journal; who may read the files of /var/log may read the journal, too.
xids::log() {
  local said
  said="$(timeout 5 dmesg 2>/dev/null)" || said=''
  [[ -n "${said}" ]] || said="$(timeout 5 journalctl --dmesg --boot --output=short-monotonic --quiet --no-pager 2>/dev/null)" || said=''
  [[ -n "${said}" ]] || return 1
  grep -F 'NVRM: ' < <(printf '%s\n' "${said}") || true
}

# xids::warn - on the first node: says once where nobody could look.
xids::warn() {
  local nodes
  nodes="$(event::of kernel_log_unread | sed -n 's/.*"node": "\([^"]*\)".*/\1/p' | kit::first_ten)"
  [[ -z "${nodes}" ]] || kit::say "Xid errors are not looked for on ${nodes}: the kernel log is not for ordinary users there"
}
