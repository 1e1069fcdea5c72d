# interface.sh - how a node's ranks reach the master: its own interface on the way there.

# interface::check_master - rank 0's process listens on MASTER_ADDR, so the first node must have that address.
interface::check_master() {
  command -v ip >/dev/null || return 0
  [[ "$(ip -brief address show 2>/dev/null)" == *" ${MASTER_ADDR}"[/\ ]* ]] ||
    kit::die "this node has rank 0, but not the address ${MASTER_ADDR} at which the others will look for it" \
      "correct this node's entry in DNS or /etc/hosts, or its NodeAddr in slurm.conf" address-unknown
}

# interface::choose - where this node's own name is a loopback address, as Debian installs it, or has none at all, Gloo and
# TensorPipe would listen on loopback and nobody reach them. They get the interface that leads to the master, unless the
# job or the site has chosen one.
interface::choose() {
  ((NNODES > 1)) && [[ -z "${KIT_LOOPBACK:-}" ]] && command -v getent >/dev/null || return 0
  local name address interface='' routes=/proc/net/route
  [[ "${MASTER_ADDR}" != *:* ]] || routes=/proc/net/ipv6_route
  [[ -r "${routes}" ]] || return 0
  read -r name </proc/sys/kernel/hostname # in a step HOSTNAME is that of the batch script's node
  # Of a name without an address Gloo thinks the same.
  read -r address _ < <(exec getent ahostsv4 "${name}" 2>/dev/null) || read -r address _ < <(exec getent ahostsv6 "${name}" 2>/dev/null) ||
    address=127.0.0.1
  [[ "${address}" == @(127.*|::1) ]] || return 0
  interface::find "${MASTER_ADDR}" < <(exec cat -- "${routes}") # at once: line by line it may change in between
  [[ -n "${interface}" ]] || return 0
  export GLOO_SOCKET_IFNAME="${GLOO_SOCKET_IFNAME:-${interface}}" TP_SOCKET_IFNAME="${TP_SOCKET_IFNAME:-${interface}}"
}

# interface::find ADDRESS - sets the caller's `interface` to that of the way there, by the kernel's table of routes on its input: that of
# the most specific route. Without `ip`, which an image may lack.
interface::find() {
  local kit_hex
  interface::hex "$1" 2>/dev/null || return 0 # no address, but a name that nobody knows here
  if [[ "$1" == *:* ]]; then interface::find_v6; else interface::find_v4; fi
}

# interface::find_v4 - for the address in `kit_hex`. The table's numbers are hexadecimal, and have the first byte of an address last.
interface::find_v4() {
  local -ri address=16#${kit_hex:6:2}${kit_hex:4:2}${kit_hex:2:2}${kit_hex:0:2}
  local name destination mask
  local -i specific best=-1
  while read -r name destination _ _ _ _ _ mask _; do
    [[ "${destination}${mask}" =~ ^[0-9A-F]{16}$ ]] || continue # its head
    specific=$((16#${mask:6:2}${mask:4:2}${mask:2:2}${mask:0:2}))
    if (((address & 16#${mask}) == 16#${destination} && specific > best)); then
      best="${specific}" interface="${name}"
    fi
  done
}

# interface::find_v6 - the same. The table has each network's first address and, in hexadecimal digits, too, its length in bits.
interface::find_v6() {
  local network length name
  local -i bits digits best=-1
  while read -r network length _ _ _ _ _ _ _ name; do
    bits=$((16#0${length})) digits=$((bits / 4))
    ((bits > best)) && [[ "${name}" != @(|lo) && "${network:0:digits}" == "${kit_hex:0:digits}" ]] || continue
    ((bits % 4 == 0 || (16#0${network:digits:1} ^ 16#0${kit_hex:digits:1}) >> (4 - bits % 4) == 0)) || continue
    best="${bits}" interface="${name}"
  done
}

# interface::hex ADDRESS - sets the caller's `kit_hex` to its bytes, two hexadecimal digits each.
interface::hex() {
  local -a words=() last=()
  if [[ "$1" != *:* ]]; then
    kit::split words . "$1"
    printf -v kit_hex '%02x' "${words[@]}"
    return
  fi
  [[ "$1" != *::* ]] || kit::split last : "${1##*::}"
  kit::split words : "${1%%::*}"
  while ((${#words[@]} + ${#last[@]} < 8)); do words+=(0); done
  words+=("${last[@]}")
  printf -v kit_hex '%04x' "${words[@]/#/0x}"
}
