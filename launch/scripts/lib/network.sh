# network.sh - how the nodes reach each other: the master's address and port.

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
