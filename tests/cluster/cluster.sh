#!/usr/bin/env bash
# A real Slurm cluster on this machine, in Docker: one controller `ctl`, the compute nodes
# node1..node3 or more, an ordinary user `ada`, /shared on all of them, /scratch and /tmp on each its own.
#
#   cluster.sh up                          build what is missing, start, wait until a job runs
#   cluster.sh down                        remove its containers and its network
#   cluster.sh status                      containers, nodes, jobs
#   cluster.sh shell [NODE]                a shell as ada (on ctl)
#   cluster.sh exec NODE [--root] CMD...   a command as ada, from /shared
#   cluster.sh serve NODE                  one command after the other: see node-shell
#   cluster.sh kill-slurmd NODE            kill the daemon, leave the container
#   cluster.sh kill-node NODE              kill the container
#   cluster.sh freeze-node NODE            stop all of its processes
#   cluster.sh cut-off NODE                drop all that it sends and receives
#   cluster.sh restore NODE                undo any of these, wait until the node is usable
#   cluster.sh enroot                      what `enroot` is on the nodes: real, stub or none
#   cluster.sh pyxis                       the same of Pyxis: real or stub
#   cluster.sh where                       the host's folder of /shared
#
# KIT_CLUSTER_NAME         prefix of the containers (kit); two names are two clusters
# KIT_CLUSTER_NODES        how many compute nodes it has, 1 to 9 (3)
# KIT_CLUSTER_SUBNET       first three numbers of its /24 (the first free one of 172.30.*)
# KIT_CLUSTER_DIR          its configuration, homes and /shared (/tmp/kit-cluster-NAME)
# KIT_CLUSTER_IMAGES       what `up` builds: all, or nodes for no training image (all)
# KIT_CLUSTER_DEBIAN       whose Slurm it is: bookworm has 22.05, trixie 24.11, sid the newest (trixie)
# Switches of `up`; a changed one starts the cluster anew:
# KIT_CLUSTER_PROCTRACK    cgroup, linuxproc, or auto: cgroup where it works (auto)
# KIT_CLUSTER_PYXIS_SCOPE  global or job (global)
# KIT_CLUSTER_LOOPBACK     yes: each machine's own name is 127.0.1.1, as Debian installs it; no: its network address (yes)
# KIT_CLUSTER_NODE_NAMES   same as the host names, or other: cn1.. on the hosts node1.. (same)
# KIT_CLUSTER_IP           4, or 6: no machine has an address of IPv4, but for loopback (4)
# KIT_CLUSTER_TIMES        short, or default: Slurm's own, such as five minutes until it gives up a silent node (short)
set -euo pipefail
here="$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")"
# shellcheck source=tests/cluster/lib.sh
source "${here}/lib.sh"

readonly cluster="${KIT_CLUSTER_NAME:-kit}"
readonly network="${cluster}-cluster"
readonly dir="${KIT_CLUSTER_DIR:-/tmp/kit-cluster-${cluster}}"
readonly node_count="${KIT_CLUSTER_NODES:-3}"
[[ "${node_count}" == [1-9] ]] || die "KIT_CLUSTER_NODES: '${node_count}' is no number of nodes" "1 to 9" 2
nodes=(node{1..9})
readonly nodes=("${nodes[@]:0:node_count}")
readonly proctrack="${KIT_CLUSTER_PROCTRACK:-auto}"
readonly pyxis_scope="${KIT_CLUSTER_PYXIS_SCOPE:-global}"
readonly loopback="${KIT_CLUSTER_LOOPBACK:-yes}"
readonly times="${KIT_CLUSTER_TIMES:-short}"
readonly node_names="${KIT_CLUSTER_NODE_NAMES:-same}"
readonly ip="${KIT_CLUSTER_IP:-4}"
readonly login_env=(
  HOME=/home/ada USER=ada LOGNAME=ada SHELL=/bin/bash LANG=C.UTF-8 TERM="${TERM:-dumb}"
  PATH=/usr/local/bin:/usr/bin:/bin XDG_RUNTIME_DIR=/run/user/1000 KIT_FOLLOW_PERIOD_S=0.3
)

# --- settings ------------------------------------------------------------------------------

cluster::check_switch() {
  local -r name="$1" value="$2"
  local allowed
  shift 2
  for allowed in "$@"; do
    [[ "${value}" != "${allowed}" ]] || return 0
  done
  die "${name}: '${value}' is none of its values" "one of: $*" 2
}

cluster::check_settings() {
  [[ "${cluster}" =~ ^[a-z0-9][a-z0-9_-]*$ ]] ||
    die "KIT_CLUSTER_NAME: '${cluster}' cannot be a container's name" "use a-z, 0-9, - and _" 2
  cluster::check_switch KIT_CLUSTER_PROCTRACK "${proctrack}" auto cgroup linuxproc
  cluster::check_switch KIT_CLUSTER_PYXIS_SCOPE "${pyxis_scope}" global job
  cluster::check_switch KIT_CLUSTER_LOOPBACK "${loopback}" no yes
  cluster::check_switch KIT_CLUSTER_TIMES "${times}" default short
  cluster::check_switch KIT_CLUSTER_NODE_NAMES "${node_names}" same other
  cluster::check_switch KIT_CLUSTER_IP "${ip}" 4 6
  cluster::check_switch KIT_CLUSTER_IMAGES "${KIT_CLUSTER_IMAGES:-all}" all nodes
  cluster::check_switch KIT_CLUSTER_DEBIAN "${lib_debian}" bookworm trixie sid
}

# One line for all that makes two clusters different, as a label of the containers.
cluster::fingerprint() {
  {
    printf '%s\n' "${nodes[*]}" "${proctrack}" "${pyxis_scope}" "${loopback}" "${node_names}" "${ip}" "${times}" "${dir}" \
      "$(lib::cache)" "${KIT_CLUSTER_SUBNET:-}"
    docker image inspect --format '{{.Id}}' "${lib_node}" "${lib_controller}"
    cat "${here}/cluster.sh" "${here}/node-shell" "${here}/slurm.conf" "${here}/cgroup.conf"
  } | sha256sum | cut -c 1-12
}

cluster::slurm_name() {
  local -r node="$1"
  if [[ "${node_names}" == other && "${node}" == node* ]]; then
    printf 'cn%s\n' "${node#node}"
  else
    printf '%s\n' "${node}"
  fi
}

# --- containers ----------------------------------------------------------------------------

# Prints the name of a node's container, or dies when there is no such node.
cluster::container() {
  local -r node="$1"
  local known
  for known in ctl "${nodes[@]}"; do
    if [[ "${node}" == "${known}" ]]; then
      printf '%s-%s\n' "${cluster}" "${node}"
      return
    fi
  done
  die "no node '${node}' in cluster ${cluster}" "one of: ctl ${nodes[*]}" 2
}

cluster::running() {
  local -r node="$1"
  [[ "$(docker container inspect --format '{{.State.Running}}' "${cluster}-${node}" 2>/dev/null)" == true ]]
}

cluster::need_running() {
  local -r node="$1"
  cluster::running "${node}" || die "${cluster}-${node} is not running" \
    "${here}/cluster.sh up, or cluster.sh restore ${node} when it was killed"
}

cluster::exec() {
  local -r node="$1"
  shift
  local container
  container="$(cluster::container "${node}")"
  cluster::need_running "${node}"
  local -a options=(--interactive) as=(env -i "${login_env[@]}")
  if [[ "${1:-}" == --root ]]; then
    shift
    as=()
  else
    options+=(--user ada --workdir /shared)
  fi
  (($# > 0)) || die "exec ${node}: no command" "cluster.sh exec ${node} hostname" 2
  if [[ -t 0 && -t 1 ]]; then
    options+=(--tty)
  fi
  exec docker exec "${options[@]}" "${container}" "${as[@]}" "$@"
}

cluster::serve() {
  local container
  container="$(cluster::container "$1")"
  exec docker exec --interactive "${container}" perl /etc/slurm/node-shell "${login_env[@]}"
}

# For this file's own calls: a command of Slurm on the controller, as root.
cluster::slurm() {
  docker exec "${cluster}-ctl" "$@"
}

cluster::make_network() {
  local third
  local -a more=()
  local -a candidates=("${KIT_CLUSTER_SUBNET:-}")
  if docker network inspect "${network}" >/dev/null 2>&1; then
    return
  fi
  if [[ -z "${KIT_CLUSTER_SUBNET:-}" ]]; then
    candidates=()
    for third in {0..15}; do
      candidates+=("172.30.${third}")
    done
  fi
  local subnet
  for subnet in "${candidates[@]}"; do
    [[ "${ip}" == 4 ]] || more=(--ipv6 --subnet "$(cluster::address_v6 "${subnet}" '')/64")
    if docker network create --subnet "${subnet}.0/24" "${more[@]}" "${network}" >/dev/null 2>&1; then
      return
    fi
  done
  die "network ${network}: cannot be made in ${candidates[*]}" \
    "set KIT_CLUSTER_SUBNET to three numbers that no network here uses, such as 10.99.7"
}

cluster::subnet() {
  docker network inspect --format '{{range .IPAM.Config}}{{println .Subnet}}{{end}}' "${network}" | sed -n 's/\.0\/24$//p'
}

# cluster::address_v6 SUBNET NUMBER - as the number's in the subnet of IPv4.
cluster::address_v6() { printf 'fd00:%s::%s\n' "${1//./:}" "$2"; }

# cluster::address SUBNET NUMBER - what the machines call each other by.
cluster::address() {
  if [[ "${ip}" == 6 ]]; then cluster::address_v6 "$@"; else printf '%s.%s\n' "$@"; fi
}

# Prints what the nodes can have on this machine: a line with cgroup, one with pyxis.
cluster::probe() {
  docker run --rm --network none "${lib_caps[@]}" --entrypoint cluster-entrypoint "${lib_node}" probe
}

cluster::resolve_proctrack() {
  local -r probed="$1"
  if [[ "${proctrack}" != linuxproc && "${probed}" == *cgroup* ]]; then
    printf 'cgroup\n'
  elif [[ "${proctrack}" == cgroup ]]; then
    die "KIT_CLUSTER_PROCTRACK=cgroup: no writable cgroup v1 freezer here" "use auto or linuxproc"
  else
    printf 'linuxproc\n'
  fi
}

# The folder that every container has as /etc/slurm.
cluster::write_config() {
  local -r track="$1" subnet="$2" probed="$3" out="${dir}/etc"
  local node address
  local -i i
  rm -rf "${out}"
  mkdir -p "${out}/plugstack.conf.d"
  {
    if [[ "${times}" == short ]]; then cat "${here}/slurm.conf"; else sed '/^# Short/,/^AuthInfo=/d' "${here}/slurm.conf"; fi
    printf '\nSlurmctldHost=ctl(%s)\n' "$(cluster::address "${subnet}" 10)"
    [[ "${ip}" == 4 ]] || printf 'CommunicationParameters=EnableIPv6,DisableIPv4\n'
    printf 'ProctrackType=proctrack/%s\n' "${track}"
    for i in "${!nodes[@]}"; do
      node="${nodes[i]}" address="${nodes[i]}"
      [[ "${ip}" == 4 ]] || address="$(cluster::address "${subnet}" "$((11 + i))")"
      printf 'NodeName=%s NodeHostName=%s NodeAddr=%s CPUs=4 RealMemory=7000 State=UNKNOWN\n' \
        "$(cluster::slurm_name "${node}")" "${node}" "${address}"
    done
    printf 'PartitionName=cpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=5 PreemptMode=OFF\n'
    # Jobs of the first two give way to those of the third: by going back to the queue, and by being cancelled.
    printf 'PartitionName=cheap Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE\n'
    printf 'PartitionName=spot Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=CANCEL\n'
    printf 'PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=9 PreemptMode=OFF\n'
  } >"${out}/slurm.conf"
  {
    cat "${here}/cgroup.conf"
    if [[ "${track}" == cgroup ]]; then
      printf 'CgroupPlugin=cgroup/v1\n'
    else
      printf 'CgroupPlugin=disabled\n'
    fi
  } >"${out}/cgroup.conf"
  printf 'include /etc/slurm/plugstack.conf.d/*.conf\n' >"${out}/plugstack.conf"
  cp "${here}/node-shell" "${out}/"
  if [[ "${probed}" == *pyxis* ]]; then
    printf 'required /usr/lib/x86_64-linux-gnu/slurm/spank_pyxis.so container_scope=%s use_squashfuse=1\n' \
      "${pyxis_scope}" >"${out}/plugstack.conf.d/pyxis.conf"
  else
    # Slurm does not include it: only kit reads what it says of the stub.
    printf 'stub container_scope=global use_squashfuse=1\n' >"${out}/plugstack.conf.d/pyxis.stub"
  fi
}

cluster::start_container() {
  local -r node="$1" subnet="$2" number="$3" track="$4" mark="$5"
  local image="${lib_node}" role=node
  local -a own=(--ip "${subnet}.${number}")
  [[ "${ip}" == 4 ]] || own+=(--ip6 "$(cluster::address "${subnet}" "${number}")" --env "ADDRESSES=$(cluster::address "${subnet}" '')")
  if [[ "${node}" == ctl ]]; then
    image="${lib_controller}"
    role=controller
  fi
  # /scratch and /tmp are anonymous volumes: local to a node, and on a real file system, so that
  # overlays work on them. Where nobody removes them, images.sh does, which knows them by their label.
  docker run --detach --name "${cluster}-${node}" --hostname "${node}" \
    --label "kit.cluster=${cluster}" --label "kit.fingerprint=${mark}" \
    --network "${network}" --network-alias "${node}" "${own[@]}" \
    "${lib_caps[@]}" --shm-size 2g \
    --volume "${dir}/etc:/etc/slurm:ro" --volume "${dir}/shared:/shared" \
    --volume "${dir}/home:/home/ada" --volume "$(lib::cache)/images:/images:ro" \
    --mount "type=volume,destination=/scratch,volume-label=kit.cluster=${cluster}" \
    --mount "type=volume,destination=/tmp,volume-label=kit.cluster=${cluster}" \
    --env "ROLE=${role}" --env "PROCTRACK=${track}" --env "DEBIAN_LOOPBACK=${loopback}" \
    --env "SLURM_NODE_NAME=$(cluster::slurm_name "${node}")" --env "CLUSTER_HOSTS=ctl ${nodes[*]}" \
    "${image}" >/dev/null
}

cluster::start() {
  local -r mark="$1"
  local track subnet probed i
  cluster::make_network
  subnet="$(cluster::subnet)"
  probed="$(cluster::probe)"
  track="$(cluster::resolve_proctrack "${probed}")"
  mkdir -p "${dir}/shared" "${dir}/home" "$(lib::cache)/images"
  chmod 755 "${dir}"
  cluster::write_config "${track}" "${subnet}" "${probed}"
  say "starting ctl ${nodes[*]} on ${subnet}.0/24, proctrack/${track}"
  local -a pids=()
  cluster::start_container ctl "${subnet}" 10 "${track}" "${mark}" &
  pids+=("$!")
  for i in "${!nodes[@]}"; do
    cluster::start_container "${nodes[i]}" "${subnet}" "$((11 + i))" "${track}" "${mark}" &
    pids+=("$!")
  done
  for i in "${pids[@]}"; do
    wait "${i}" || die "a container of cluster ${cluster} does not start" "see the lines above"
  done
}

# Whether this very cluster runs already, whole.
cluster::is_up() {
  local -r mark="$1"
  local node
  for node in ctl "${nodes[@]}"; do
    cluster::running "${node}" || return 1
    [[ "$(docker container inspect --format '{{index .Config.Labels "kit.fingerprint"}}' \
      "${cluster}-${node}")" == "${mark}" ]] || return 1
  done
}

# Returns when a job on all nodes works: sinfo says idle before that.
cluster::wait_ready() {
  local -r deadline=$((SECONDS + 300))
  local node
  until docker exec --user ada --workdir / "${cluster}-ctl" \
    timeout 30 srun --quiet --immediate=3 --nodes="${#nodes[@]}" true >/dev/null 2>&1; do
    for node in ctl "${nodes[@]}"; do
      cluster::running "${node}" ||
        die "${cluster}-${node} stopped" "docker logs ${cluster}-${node}"
    done
    ((SECONDS < deadline)) || die "cluster ${cluster}: no job ran on ${#nodes[@]} nodes within 300 s" \
      "cluster.sh status; /var/log/slurm in the containers; or jobs hold the nodes: squeue"
    cluster::resume_down
    sleep 0.2
  done
}

# After a crash Slurm leaves nodes down. An error here shows as a node that never gets ready.
cluster::resume_down() {
  local name
  local -a down
  mapfile -t down < <(cluster::slurm sinfo --noheader --Node --states=down,drain --format=%N 2>/dev/null)
  for name in "${down[@]}"; do
    cluster::slurm scontrol update "nodename=${name}" state=resume >/dev/null 2>&1 || continue
  done
}

# --- commands ------------------------------------------------------------------------------

cluster::up() {
  local mark
  "${here}/engine.sh"
  "${here}/images.sh" "${KIT_CLUSTER_IMAGES:-all}"
  lib::lock "cluster-${cluster}" 600
  mark="$(cluster::fingerprint)"
  if cluster::is_up "${mark}"; then
    say "cluster ${cluster} runs already"
  else
    cluster::remove
    cluster::start "${mark}"
  fi
  cluster::wait_ready
  say "ready after ${SECONDS} s; /shared is ${dir}/shared"
  say "try: $0 shell    then: sinfo; srun -N${node_count} hostname; srun -N${node_count} apptainer exec /images/train.sif python3 -V"
  say "from here: $0 exec ctl srun -N${node_count} hostname    and when done: $0 down"
}

cluster::remove() {
  local -a containers volumes
  mapfile -t containers < <(docker ps --all --quiet --filter "label=kit.cluster=${cluster}")
  if ((${#containers[@]} > 0)); then
    say "removing ${#containers[@]} containers of cluster ${cluster}"
    mapfile -t volumes < <(docker inspect --format '{{range .Mounts}}{{with .Name}}{{println .}}{{end}}{{end}}' "${containers[@]}" | grep .)
    printf '%s\n' "${containers[@]}" | xargs -n 1 -P "${#containers[@]}" docker rm --force >/dev/null
    # They hold unpacked images, whose files take minutes to remove. Nobody has to wait for that; but the engine removes one volume
    # after the other, and no container with one meanwhile: so later, when no other cluster is left, or after ten minutes.
    if ((${#volumes[@]} > 0)); then
      # A command alone, not a list: the shell that waits for a list would keep the caller's pipes, and the caller wait for it.
      # shellcheck disable=SC2016 # the inner shell expands it
      setsid bash -c '
        for ((i = 0; i < 120; i++)); do
          docker ps --quiet --filter label=kit.cluster | grep -q . || break
          sleep 5
        done
        docker volume rm "$@"' bash "${volumes[@]}" </dev/null >/dev/null 2>&1 {lib_locked}>&- &
    fi
  fi
  if docker network inspect "${network}" >/dev/null 2>&1; then
    docker network rm "${network}" >/dev/null
  fi
}

cluster::down() {
  lib::lock "cluster-${cluster}" 600
  cluster::remove
  say "cluster ${cluster} is down; its files stay in ${dir}"
}

cluster::status() {
  docker ps --all --filter "label=kit.cluster=${cluster}" --format 'table {{.Names}}\t{{.Status}}\t{{.Image}}'
  if cluster::running ctl; then
    cluster::slurm sinfo
    cluster::slurm squeue
  fi
}

cluster::kill_slurmd() {
  local -r node="$1"
  local container
  container="$(cluster::container "${node}")"
  cluster::need_running "${node}"
  docker exec "${container}" pkill -KILL -x slurmd ||
    die "${container}: no slurmd runs there" "cluster.sh restore ${node}"
}

# On a busy machine Docker may need more than one try: "unable to freeze".
cluster::freeze_node() {
  local tries
  for tries in {1..5}; do
    ! docker pause "$(cluster::container "$1")" >/dev/null || return 0
    sleep 1
  done
  die "Docker does not freeze $1 (${tries} tries)" "see what it says above"
}

cluster::kill_node() {
  local container
  container="$(cluster::container "$1")"
  docker kill "${container}" >/dev/null
}

# `docker exec` needs no network.
cluster::cut_off() {
  local container
  container="$(cluster::container "$1")"
  cluster::need_running "$1"
  cluster::is_cut_off "${container}" || cluster::firewall "${container}" -I
}

cluster::is_cut_off() { docker exec "$1" iptables -C INPUT ! -i lo -j DROP 2>/dev/null; }

cluster::firewall() {
  local -r container="$1" change="$2"
  local tool
  for tool in iptables $([[ "${ip}" == 4 ]] || echo ip6tables); do
    docker exec "${container}" "${tool}" "${change}" INPUT ! -i lo -j DROP
    docker exec "${container}" "${tool}" "${change}" OUTPUT ! -o lo -j DROP
  done
}

# Seconds since the epoch at which slurmd of a node started, as the controller, whose clock shows UTC, knows it; 0: never.
cluster::slurmd_start_s() {
  local -r name="$1"
  local text
  text="$(cluster::slurm scontrol show node -o "${name}" | sed -n 's/.*SlurmdStartTime=\([^ ]*\).*/\1/p')"
  date --utc --date "${text}" +%s 2>/dev/null || echo 0
}

cluster::restore() {
  local -r node="$1" begin_s="$(date +%s)" deadline=$((SECONDS + 120))
  local container name state known_s=0
  container="$(cluster::container "${node}")"
  [[ "$(docker container inspect --format '{{.State.Paused}}' "${container}")" != true ]] || docker unpause "${container}" >/dev/null
  if ! cluster::running "${node}"; then
    docker start "${container}" >/dev/null
  elif cluster::is_cut_off "${container}"; then
    cluster::firewall "${container}" -D
    known_s="${begin_s}"
  elif [[ "${node}" != ctl ]] && ! docker exec "${container}" pgrep -x slurmd >/dev/null; then
    docker exec "${container}" cluster-entrypoint start-slurmd
  else
    known_s="${begin_s}"
  fi
  if [[ "${node}" == ctl ]]; then
    cluster::wait_ready
    return
  fi
  name="$(docker exec "${container}" printenv SLURM_NODE_NAME)"
  while :; do
    # The controller may call a node idle that it has not missed yet: wait for the new slurmd.
    ((known_s >= begin_s)) || known_s="$(cluster::slurmd_start_s "${name}")"
    state="$(cluster::slurm sinfo --noheader --nodes="${name}" --format=%T)"
    if ((known_s >= begin_s)) && [[ "${state}" =~ ^(idle|mixed|allocated)$ ]]; then
      return
    fi
    ((SECONDS < deadline)) || die "${name} is still ${state} after 120 s" \
      "read /var/log/slurm/slurmd.log in ${container}"
    cluster::resume_down
    sleep 0.2
  done
}

cluster::enroot() {
  cluster::need_running node1
  # shellcheck disable=SC2016  # the container's shell expands it
  docker exec "${cluster}-node1" bash -c '
        file="$(command -v enroot)" || { echo none; exit; }
        if dpkg-query --search "${file}" > /dev/null 2>&1; then echo real; else echo stub; fi'
}

cluster::pyxis() {
  cluster::need_running node1
  if docker exec "${cluster}-node1" test -e /usr/local/bin/srun; then echo stub; else echo real; fi
}

cluster::main() {
  local -r command="${1:-}"
  cluster::check_settings
  need docker "run ${here}/engine.sh"
  case "${command}" in
    exec | serve | kill-slurmd | kill-node | freeze-node | cut-off | restore)
      (($# >= 2)) || die "${command}: which node?" "cluster.sh ${command} node1" 2
      ;;
  esac
  case "${command}" in
    up) cluster::up ;;
    down) cluster::down ;;
    status) cluster::status ;;
    shell) cluster::exec "${2:-ctl}" bash -l ;;
    exec) cluster::exec "${@:2}" ;;
    serve) cluster::serve "$2" ;;
    kill-slurmd) cluster::kill_slurmd "$2" ;;
    kill-node) cluster::kill_node "$2" ;;
    freeze-node) cluster::freeze_node "$2" ;;
    cut-off) cluster::cut_off "$2" ;;
    restore) cluster::restore "$2" ;;
    enroot) cluster::enroot ;;
    pyxis) cluster::pyxis ;;
    where) printf '%s\n' "${dir}/shared" ;;
    *)
      sed -n '2,/^set -/{/^set -/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}" >&2
      exit 2
      ;;
  esac
}

cluster::main "$@"
