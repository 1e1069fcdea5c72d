# reach.sh - whether nodes know and reach each other, at the ports that jobs use. A part of probe.sh.

readonly REACH_FEW=16 # nodes that one connects to; with more, each has others
readonly REACH_CONNECT_S=3
# shellcheck disable=SC2016  # Perl's, which bash has to leave alone
readonly REACH_LISTEN='use Socket qw(:DEFAULT pack_sockaddr_in6 IN6ADDR_ANY IPPROTO_IPV6 IPV6_V6ONLY); $| = 1;
for (@ARGV) {
  my $s;
  # A socket of IPv6 also takes connections over IPv4.
  my $both = socket($s, AF_INET6, SOCK_STREAM, 0) && setsockopt($s, IPPROTO_IPV6, IPV6_V6ONLY, 0);
  ($both || socket($s, AF_INET, SOCK_STREAM, 0)) && setsockopt($s, SOL_SOCKET, SO_REUSEADDR, 1)
    && bind($s, $both ? pack_sockaddr_in6($_, IN6ADDR_ANY) : sockaddr_in($_, INADDR_ANY)) && listen($s, SOMAXCONN) or die "$_: $!\n";
  push @open, $s;
}
print "listening\n"; sleep 600'
REACH_LISTENER='' # the process that listens

# reach::addresses NODE - prints the addresses of its name, or of what Slurm calls its address, as net::address does.
reach::addresses() {
  local kind name found
  for kind in v4 v6; do
    for name in "$1" "${ADDRESS_OF[$1]}"; do
      [[ -n "${name}" ]] || continue # Slurm names no address
      found="$(net::resolve "${name}" "${kind}")"
      [[ -z "${found}" ]] || { sort -u <<<"${found}" && return; }
    done
  done
}

# reach::names - looks up this node and those that it connects to: all by all would be a million look-ups at once at a thousand nodes.
reach::names() {
  local name found
  while read -r name; do
    [[ -n "${ADDRESS_OF["${name}"]+given}" ]] || continue # this node, where it is none of them
    found="$(reach::addresses "${name}")"
    if [[ -z "${found}" ]]; then
      probe::say unknown-name "${name}"
    elif ! net::usable <<<"${found}" >/dev/null; then
      probe::say loopback-name "${name}" "${found//$'\n'/ }"
    fi
  done < <(kit::node && echo && reach::neighbours)
}

# reach::listen - listens at the ports that a job's master would take at its first start and at the next ones.
reach::listen() {
  local restart port said
  local -a ports=()
  for restart in 0 1 2; do
    if ! port="$(net::port "${SLURM_JOB_ID:-0}" "${restart}" 127.0.0.1 2>/dev/null)"; then
      probe::say listener failed 'all ports of the range are in use'
      return
    fi
    ports+=("${port}")
  done
  if command -v perl >/dev/null && coproc LISTENER { exec perl -e "${REACH_LISTEN}" "${ports[@]}" 2>&1; }; then
    REACH_LISTENER="${LISTENER_PID}"
    IFS= read -r -t 5 -u "${LISTENER[0]}" said || said=''
    if [[ "${said}" == listening ]]; then
      probe::say listener perl "${ports[@]}"
      return
    elif [[ "${said}" =~ ^[0-9]+:\  ]]; then
      probe::say listener failed "port ${said}"
      return
    fi
  fi
  probe::say listener none "${ports[@]}" # a refused connection then says that the way is free
}

# reach::neighbours - prints the nodes after this one, in a ring, and the first of all, which most masters are.
reach::neighbours() {
  local own
  own="$(kit::node)" # once: a process for each of 4,000 nodes takes seconds
  local -i i self=0
  for i in "${!NODES[@]}"; do [[ "${NODES[i]}" != "${own}" ]] || self=i; done
  {
    ((self == 0)) || printf '%s\n' "${NODES[0]}"
    for ((i = 1; i <= REACH_FEW && i < ${#NODES[@]}; i++)); do printf '%s\n' "${NODES[(self + i) % ${#NODES[@]}]}"; done
  } | awk '!seen[$0]++'
}

# reach::connect NODE:PORT,PORT... - connects to those of them that are this node's neighbours, all at once.
reach::connect() {
  local -A ports_of=()
  local word node address port
  for word in "$@"; do ports_of["${word%:*}"]="${word##*:}"; done
  while read -r node; do
    [[ -n "${ports_of["${node}"]:-}" ]] || continue
    address="$(net::usable < <(reach::addresses "${node}"))" || continue # told already
    for port in ${ports_of["${node}"]//,/ }; do
      reach::try "${node}" "${address}" "${port}" &
    done
  done < <(reach::neighbours)
  local pid
  for pid in $(jobs -p); do
    [[ "${pid}" == "${REACH_LISTENER}" ]] || wait "${pid}"
  done
}

reach::try() {
  local said rc=0
  # shellcheck disable=SC2016  # the inner shell expands it
  said="$(timeout "${REACH_CONNECT_S}" bash -c 'exec 3<>"/dev/tcp/$1/$2"' bash "$2" "$3" 2>&1)" || rc=$?
  case "${rc}" in
    0) said=open ;;
    124) said="no answer in ${REACH_CONNECT_S} s" ;;
    *) said="$(head -n 1 <<<"${said}")" said="${said##*: }" ;;
  esac
  probe::say reach "$1" "$2" "$3" "${said}"
}

reach::end() { [[ -z "${REACH_LISTENER}" ]] || kill "${REACH_LISTENER}" 2>/dev/null; }
