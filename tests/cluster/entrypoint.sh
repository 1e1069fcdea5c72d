#!/usr/bin/env bash
# Process of every container under tini: starts munged and this node's Slurm daemon, then only
# waits, so that a daemon can be killed and started again without ending the container.
#
#   cluster-entrypoint                 start what ROLE says, then wait
#   cluster-entrypoint start-slurmd    start slurmd again (after it was killed)
#   cluster-entrypoint probe           print what can be had here: a line with cgroup, one with pyxis
set -euo pipefail

die() {
  local -r problem="$1" fix="$2"
  printf 'cluster-entrypoint: %s: %s\n  fix: %s\n' "${HOSTNAME}" "${problem}" "${fix}" >&2
  exit 1
}

cgroup::unlock() {
  # The v1 controllers arrive read-only. Nothing to do on a v2 host.
  local controller
  for controller in /sys/fs/cgroup/*/; do
    if mountpoint -q "${controller}"; then
      mount -o remount,bind,rw "${controller}" || return 1
    fi
  done
}

cgroup::works() {
  [[ -d /sys/fs/cgroup/freezer ]] || return 1
  cgroup::unlock || return 1
  mkdir /sys/fs/cgroup/freezer/probe && rmdir /sys/fs/cgroup/freezer/probe
}

probe() {
  if cgroup::works; then
    echo cgroup
  fi
  if [[ -e /usr/lib/x86_64-linux-gnu/slurm/spank_pyxis.so ]]; then
    echo pyxis
  fi
}

hosts::debian_loopback() {
  # What Debian's installer writes: the machine's own name is a loopback address.
  printf '127.0.0.1\tlocalhost\n127.0.1.1\t%s\n::1\tlocalhost ip6-localhost\n' "${HOSTNAME}" \
    >/etc/hosts
}

# hosts::leave_ipv4 - keeps the addresses that begin with ADDRESSES: the names lead there, and nothing but /etc/hosts is asked.
hosts::leave_ipv4() {
  local name
  local -i number=10
  ip -4 address flush dev eth0
  for name in ${CLUSTER_HOSTS:?}; do
    printf '%s%d\t%s\n' "${ADDRESSES}" "${number}" "${name}" >>/etc/hosts
    number+=1
  done
  : >/etc/resolv.conf
}

munge::start() {
  install -d -o munge -g munge -m 0755 /run/munge
  install -d -o munge -g munge -m 0700 /etc/munge /var/lib/munge /var/log/munge
  # What a killed container left behind.
  rm -f /run/munge/munge.socket.2 /run/munge/munged.pid /run/slurmctld.pid /run/slurmd.pid
  runuser -u munge -- munged
}

slurmctld::start() {
  local name
  for name in ${CLUSTER_HOSTS:?}; do
    local tries=0
    until getent ahosts "${name}" >/dev/null; do
      ((++tries <= 300)) || die "the name ${name} does not resolve" "start its container"
      sleep 0.1
    done
  done
  slurmctld
}

slurmd::start() {
  # -b: say that the node was booted, so that jobs of before a crash are cleared.
  slurmd -b -N "${SLURM_NODE_NAME:?}"
}

case "${1:-run}" in
  run)
    [[ "${DEBIAN_LOOPBACK:-no}" == no ]] || hosts::debian_loopback
    [[ -z "${ADDRESSES:-}" ]] || hosts::leave_ipv4
    [[ "${PROCTRACK:-linuxproc}" != cgroup ]] || cgroup::unlock
    chmod 1777 /tmp /scratch /shared /dev/shm
    chown ada:ada /shared /home/ada
    [[ ! -e /dev/fuse ]] || chmod 666 /dev/fuse
    # Its disk has them, as a file server's; what the nodes do not see is warned of.
    [[ "${ROLE:-}" != controller ]] || printf '%s *(rw)\n' /shared /home >/etc/exports
    install -d -o ada -g ada -m 0700 /run/user/1000
    install -d -o slurm -g slurm -m 0755 /var/spool/slurmctld /var/log/slurm
    install -d -m 1777 /run/enroot /scratch/enroot
    munge::start
    case "${ROLE:?}" in
      controller) slurmctld::start ;;
      node) slurmd::start ;;
      *) die "unknown ROLE '${ROLE}'" "set controller or node" ;;
    esac
    exec sleep infinity
    ;;
  start-slurmd) slurmd::start ;;
  probe) probe ;;
  *) die "unknown argument '$1'" "see the head of this file" ;;
esac
