#!/usr/bin/env bash
# Many Slurm nodes on this machine: one container of the test cluster's controller image, with a slurmctld, and a slurmd
# for each of the nodes n1, n2, ... on a port of its own. All share one disk, one address and this machine's cores.
#
#   many_slurmds.sh up COUNT       start it anew, and wait until a job runs on all nodes
#   many_slurmds.sh down           remove its container and its network
#   many_slurmds.sh exec CMD...    a command as the user ada, from /shared
#   many_slurmds.sh root CMD...    the same as root
#
# KIT_CLUSTER_NAME    as for tests/cluster/cluster.sh: "kit" gives the container kit-many-ctl and the network kit-many
set -euo pipefail
here="$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")"
readonly cluster_dir="${here%/bench}/tests/cluster"
# shellcheck source=tests/cluster/lib.sh
source "${cluster_dir}/lib.sh"

readonly name="${KIT_CLUSTER_NAME:-kit}-many"
readonly container="${name}-ctl"
readonly first_port=17001
readonly ready_s=180
folder=""

# The fixed half of the test cluster's configuration; a spool, a log and a port for each slurmd. Its credentials end too soon
# for a start on 64 nodes on a busy machine.
many::configuration() {
  local -ri count="$1"
  grep -Ev '^(SlurmdSpoolDir|SlurmdPidFile|SlurmdLogFile|SlurmdTimeout|ClusterName|AuthInfo)=' "${cluster_dir}/slurm.conf"
  printf '%s\n' ClusterName=many SlurmctldHost=ctl ProctrackType=proctrack/linuxproc SlurmdTimeout=300 \
    'SlurmdSpoolDir=/var/spool/slurmd/%n' 'SlurmdPidFile=/run/slurmd.%n.pid' 'SlurmdLogFile=/var/log/slurm/slurmd.%n.log'
  printf 'NodeName=n[1-%d] NodeHostName=ctl NodeAddr=ctl Port=[%d-%d] CPUs=4 RealMemory=7000 State=UNKNOWN\n' \
    "${count}" "${first_port}" "$((first_port + count - 1))"
  printf 'PartitionName=cpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n'
}

many::start() {
  local -ri count="$1"
  folder="$(mktemp -d)"
  mkdir "${folder}/plugstack.conf.d"
  many::configuration "${count}" >"${folder}/slurm.conf"
  printf 'CgroupPlugin=disabled\n' >"${folder}/cgroup.conf"
  : >"${folder}/plugstack.conf"
  docker network create "${name}" >/dev/null
  # /shared is a volume: a real file system, as cluster.sh has.
  # shellcheck disable=SC2154  # tests/cluster/lib.sh sets it
  docker create --name "${container}" --hostname ctl --network "${name}" "${lib_caps[@]}" --shm-size 2g \
    --volume /shared --volume /scratch --volume /tmp \
    --env ROLE=controller --env PROCTRACK=linuxproc --env CLUSTER_HOSTS=ctl kit-test/controller >/dev/null
  chmod 755 "${folder}"
  docker cp --quiet "${folder}/." "${container}:/etc/slurm" 2>/dev/null || docker cp "${folder}/." "${container}:/etc/slurm"
  docker start "${container}" >/dev/null
  # shellcheck disable=SC2016  # the container's shell expands it
  docker exec "${container}" bash -euc '
    address="$(getent ahostsv4 ctl | { read -r first _; printf "%s" "${first}"; })"
    for ((number = 1; number <= $1; number++)); do
      printf "%s\tn%d\n" "${address}" "${number}" # as the name service of a cluster says it
    done >>/etc/hosts
    for ((number = 1; number <= $1; number++)); do
      mkdir -p "/var/spool/slurmd/n${number}"
      slurmd -b -N "n${number}"
    done' bash "${count}"
}

many::wait_ready() {
  local -ri count="$1"
  local -ri deadline=$((SECONDS + ready_s))
  until many::exec timeout 20 srun --quiet --immediate=10 --nodes="${count}" true >/dev/null 2>&1; do
    [[ "$(docker container inspect --format '{{.State.Running}}' "${container}" 2>/dev/null)" == true ]] ||
      die "${container} stopped" "start it again, and read: docker logs ${container}"
    ((SECONDS < deadline)) || die "no job ran on ${count} nodes within ${ready_s} s" "read /var/log/slurm in ${container}; a quieter machine"
    sleep 0.5
  done
}

many::exec() {
  docker exec --user ada --workdir /shared --env HOME=/home/ada --env USER=ada --env LANG=C.UTF-8 "${container}" "$@"
}

many::remove() {
  # The processes of its own that a container leaves end with it.
  docker rm --force --volumes "${container}" >/dev/null 2>&1 || true
  docker network rm "${name}" >/dev/null 2>&1 || true
}

many::up() {
  local -ri count="$1"
  "${cluster_dir}/engine.sh"
  KIT_CLUSTER_IMAGES=nodes "${cluster_dir}/images.sh"
  many::remove
  # Half a cluster is of no use: whatever ends this before all nodes work, Ctrl-C included, takes it down.
  trap 'rm -rf -- "${folder}"; many::remove' EXIT
  many::start "${count}"
  many::wait_ready "${count}"
  trap - EXIT
  rm -rf -- "${folder}"
  say "${count} nodes are ready after ${SECONDS} s"
}

many::main() {
  need docker "run ${cluster_dir}/engine.sh"
  case "${1:-}" in
    up)
      [[ "${2:-}" =~ ^[1-9][0-9]{0,3}$ ]] || die "up: how many nodes?" "many_slurmds.sh up 64" 2
      many::up "$2"
      ;;
    down) many::remove ;;
    exec) many::exec "${@:2}" ;;
    root) docker exec --workdir /shared "${container}" "${@:2}" ;;
    *)
      sed -n '2,/^set -/{/^set -/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}" >&2
      exit 2
      ;;
  esac
}

many::main "$@"
