# network.sh - how the nodes reach each other: the master's address and port, and the interface that leads to it.

# net::address HOST - how the other nodes reach HOST: by IPv6 only where there is nothing else. Loopback is refused: with Debian's usual
# "127.0.1.1 hostname" line in /etc/hosts every node would wait for itself. `kit run` sets KIT_LOOPBACK, since all of its nodes are on one
# machine.
net::address() {
  local -r host="$1"
  local kind
  # The most trustworthy first. Slurm is asked only where names do not tell, for it may be asked for 1,000 nodes.
  for kind in v4 v6; do
    net::usable < <(net::resolve "${host}" "${kind}") || net::usable < <(net::of_slurm "${host}" "${kind}") ||
      net::usable < <(net::own "${host}" "${kind}") || continue
    return
  done
  kit::die "${host} has no address but loopback" \
    "give ${host} its network address in DNS or /etc/hosts, or as NodeAddr in slurm.conf" address-unknown
}

# net::usable - prints the first address on its input that other nodes can reach. Of a name without IPv6, getent writes the address of
# IPv4 behind ::ffff:, and one that begins with fe80: is another node's on each interface.
net::usable() {
  local address
  while read -r address; do
    [[ "${address}" != @(127.*|::1|::ffff:*|fe80:*) || -n "${KIT_LOOPBACK:-}" ]] || continue
    printf '%s\n' "${address}"
    return
  done
  return 1
}

# net::of_slurm HOST KIND - where NodeName is not a host name, Slurm knows the address.
net::of_slurm() {
  local node_addr
  node_addr="$(scontrol show node -o "$1" 2>/dev/null | sed -n 's/.* NodeAddr=\([^ ]*\).*/\1/p')" || true
  [[ -z "${node_addr}" ]] || net::resolve "${node_addr}" "$2"
}

# net::own HOST KIND - run_script.sh begins on the first node, so that node's own interfaces can answer as well.
net::own() {
  [[ "${SLURMD_NODENAME:-}" == "$1" ]] || return 0
  ip "-${2#v}" -brief address show up 2>/dev/null | grep -vE '^(lo|docker|virbr|br-|veth)' |
    tr -s ' ' '\n' | sed -n 's|/.*||p' | grep -v '^169[.]254[.]' || true
}

# net::resolve HOST KIND - prints its addresses of IPv4 (v4) or IPv6 (v6). HOST may be an address, which getent does not find on a machine
# without any network.
net::resolve() {
  if [[ "$1" =~ ^[0-9]+([.][0-9]+){3}$ ]]; then
    [[ "$2" != v4 ]] || printf '%s\n' "$1"
  elif [[ "$1" == *:* ]]; then
    [[ "$2" != v6 ]] || { getent ahostsv6 "$1" || printf '%s\n' "$1"; } | cut -d ' ' -f 1
  else
    getent "ahosts$2" "$1" | cut -d ' ' -f 1 || true
  fi
}

# net::endpoint ADDRESS PORT - as one word; an address of IPv6 has brackets there.
net::endpoint() {
  if [[ "$1" == *:* ]]; then printf '[%s]:%s' "$1" "$2"; else printf '%s:%s' "$1" "$2"; fi
}

# net::check_master - rank 0's process listens on MASTER_ADDR, so the first node must have that address.
net::check_master() {
  command -v ip >/dev/null || return 0
  [[ " $(ip -brief address show 2>/dev/null | tr -s '/\n' ' ') " == *" ${MASTER_ADDR} "* ]] ||
    kit::die "this node has rank 0, but not the address ${MASTER_ADDR} at which the others will look for it" \
      "correct this node's entry in DNS or /etc/hosts, or its NodeAddr in slurm.conf" address-unknown
}

# net::choose_interface - where this node's own name is a loopback address, as Debian installs it, or has none at all, Gloo and
# TensorPipe would listen on loopback and nobody reach them. They get the interface that leads to the master, unless the
# job or the site has chosen one.
net::choose_interface() {
  ((NNODES > 1)) && [[ -z "${KIT_LOOPBACK:-}" ]] && command -v getent >/dev/null || return 0
  local name address interface routes=/proc/net/route
  [[ "${MASTER_ADDR}" != *:* ]] || routes=/proc/net/ipv6_route
  [[ -r "${routes}" ]] || return 0
  read -r name </proc/sys/kernel/hostname # in a step HOSTNAME is that of the batch script's node
  # Of a name without an address Gloo thinks the same.
  read -r address _ < <(getent ahostsv4 "${name}" 2>/dev/null || getent ahostsv6 "${name}" 2>/dev/null) || address=127.0.0.1
  [[ "${address}" == @(127.*|::1) ]] || return 0
  interface="$(net::interface "${MASTER_ADDR}" <"${routes}")"
  [[ -n "${interface}" ]] || return 0
  export GLOO_SOCKET_IFNAME="${GLOO_SOCKET_IFNAME:-${interface}}" TP_SOCKET_IFNAME="${TP_SOCKET_IFNAME:-${interface}}"
}

# net::interface ADDRESS - the interface of the way there, by the kernel's table of routes on its input: that of the most
# specific route. Without `ip`, which an image may lack.
net::interface() {
  if [[ "$1" == *:* ]]; then net::interface_v6 "$1"; else net::interface_v4 "$1"; fi
}

# net::interface_v4 ADDRESS - the table's numbers are hexadecimal, and have the first byte of an address last.
net::interface_v4() {
  local -r hex="$(net::hex "$1")"
  local -ri address=16#${hex:6:2}${hex:4:2}${hex:2:2}${hex:0:2}
  local name destination mask found=''
  local -i specific best=-1
  while read -r name destination _ _ _ _ _ mask _; do
    [[ "${destination}${mask}" =~ ^[0-9A-F]{16}$ ]] || continue # its head
    specific=$((16#${mask:6:2}${mask:4:2}${mask:2:2}${mask:0:2}))
    if (((address & 16#${mask}) == 16#${destination} && specific > best)); then
      best="${specific}" found="${name}"
    fi
  done
  printf '%s' "${found}"
}

# net::interface_v6 ADDRESS - the table has each network's first address and, in hexadecimal digits, too, its length in bits.
net::interface_v6() {
  local -r address="$(net::hex "$1")"
  local network length name found=''
  local -i bits digits best=-1
  while read -r network length _ _ _ _ _ _ _ name; do
    bits=$((16#0${length})) digits=$((bits / 4))
    ((bits > best)) && [[ "${name}" != @(|lo) && "${network:0:digits}" == "${address:0:digits}" ]] || continue
    ((bits % 4 == 0 || (16#0${network:digits:1} ^ 16#0${address:digits:1}) >> (4 - bits % 4) == 0)) || continue
    best="${bits}" found="${name}"
  done
  printf '%s' "${found}"
}

# net::hex ADDRESS - its bytes, two hexadecimal digits each.
net::hex() {
  local -a words=() last=()
  if [[ "$1" != *:* ]]; then
    IFS=. read -ra words <<<"$1"
    printf '%02x' "${words[@]}"
    return
  fi
  [[ "$1" != *::* ]] || IFS=: read -ra last <<<"${1##*::}"
  IFS=: read -ra words <<<"${1%%::*}"
  while ((${#words[@]} + ${#last[@]} < 8)); do words+=(0); done
  words+=("${last[@]}")
  printf '%04x' "${words[@]/#/0x}"
}

# net::port JOB_ID RESTART ADDRESS - a port that two jobs on one node, or a job and its own restart, do not
# share, outside the range from which the kernel serves outgoing connections.
net::port() {
  local -ri job="$1" restart="$2"
  local -r address="$3"
  local -ri span=4000
  local -i base=61000 low=32768 high=60999 port tries
  [[ ! -r /proc/sys/net/ipv4/ip_local_port_range ]] || read -r low high </proc/sys/net/ipv4/ip_local_port_range
  # Some sites widen that range to the top; then there is room below it.
  ((high < base || low < 12000)) || base=$((low - span))
  for ((tries = 0; tries < span; tries++)); do
    port=$((base + (job + restart * 997 + tries) % span))
    if ! net::is_listening "${address}" "${port}" && ! net::is_listening 127.0.0.1 "${port}"; then
      printf '%d\n' "${port}"
      return
    fi
  done
  kit::die "all ports from ${base} to $((base + span - 1)) are in use here" "to see what uses them: ss -tlnp" port-in-use
}

net::is_listening() { (exec 3<>"/dev/tcp/$1/$2") 2>/dev/null; }
