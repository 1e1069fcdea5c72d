# shellcheck shell=bash
# lib.sh - shared by the batch part and the nodes: messages, the master's address and port, the image's identity.

kit::node() { printf '%s' "${SLURMD_NODENAME:-${HOSTNAME}}"; }
kit::say() { printf 'kit: %s: %s\n' "${SLURMD_NODENAME:-${HOSTNAME}}" "$*" >&2; } # without a fork

# kit::die PROBLEM FIX - on a node also to the file from which the batch part learns it.
kit::die() {
  printf 'kit: error: %s: %s\n  fix: %s\n' "$(kit::node)" "$1" "$2" | tee -a "${KIT_FAILURE_FILE:-/dev/null}" >&2
  exit 1
}

# slurm::binds - prints yes, unless this Slurm has nothing that binds tasks to CPUs: asked to, 22.05 says so at every step.
slurm::binds() { [[ "$(scontrol show config 2>/dev/null)" =~ TaskPlugin\ *=\ *('task/none'|'(null)') ]] || printf 'yes'; }

# net::address HOST - how the other nodes reach HOST. Loopback is refused: with Debian's usual
# "127.0.1.1 hostname" line in /etc/hosts every node would otherwise wait for itself.
# KIT_LOOPBACK is set by `kit run`, whose nodes all live on one machine.
net::address() {
  local -r host="$1"
  # The most trustworthy first; Slurm is asked only where names do not tell, for it may be asked for 1,000 nodes.
  net::usable < <(net::resolve "${host}") || net::usable < <(net::of_slurm "${host}") || net::usable < <(net::own "${host}") ||
    kit::die "${host} has no IPv4 address but loopback" \
      "give ${host} its network address in DNS or /etc/hosts, or as NodeAddr in slurm.conf"
}

# net::usable - prints the first address of its input that other nodes can reach.
net::usable() {
  local address
  while read -r address; do
    if [[ "${address}" != 127.* || -n "${KIT_LOOPBACK:-}" ]]; then
      printf '%s\n' "${address}"
      return
    fi
  done
  return 1
}

# net::of_slurm HOST - where NodeName is not a host name, Slurm knows the address.
net::of_slurm() {
  local node_addr
  node_addr="$(scontrol show node -o "$1" 2>/dev/null | sed -n 's/.* NodeAddr=\([^ ]*\).*/\1/p')" || true
  [[ -z "${node_addr}" ]] || net::resolve "${node_addr}"
}

# net::own HOST - the batch part runs on the first node, so that node's own interfaces can answer, too.
net::own() {
  [[ "${SLURMD_NODENAME:-}" == "$1" ]] || return 0
  ip -4 -brief address show up 2>/dev/null | grep -vE '^(lo|docker|virbr|br-|veth)' | tr -s ' ' '\n' | sed -n 's|/.*||p' | grep -v '^169[.]254[.]' || true
}

net::resolve() {
  local address
  if [[ "$1" =~ ^[0-9]+([.][0-9]+){3}$ ]]; then
    printf '%s\n' "$1" # on a machine without any network getent would not even find that
    return
  fi
  while read -r address _; do
    printf '%s\n' "${address}"
  done < <(getent ahostsv4 "$1" || true)
}

# net::interface ADDRESS - the interface of the way there, by the kernel's table of routes on its input: that of the most
# specific route. Without `ip`, which an image may lack. The table's numbers have the first byte of an address last.
net::interface() {
  local -a bytes
  local name destination mask found=''
  local -i address number specific best=-1
  IFS=. read -ra bytes <<<"$1"
  address=$((((bytes[3] * 256 + bytes[2]) * 256 + bytes[1]) * 256 + bytes[0]))
  while read -r name destination _ _ _ _ _ mask _; do
    [[ "${destination}${mask}" =~ ^[0-9A-F]{16}$ ]] || continue # its head
    number=$((16#${mask}))
    specific=$((((number % 256 * 256 + number / 256 % 256) * 256 + number / 65536 % 256) * 256 + number / 16777216))
    if (((address & number) == 16#${destination} && specific > best)); then
      best="${specific}" found="${name}"
    fi
  done
  printf '%s' "${found}"
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
  kit::die "all ports from ${base} to $((base + span - 1)) are in use here" "see by what: ss -tlnp"
}

net::is_listening() { (exec 3<>"/dev/tcp/$1/$2") 2>/dev/null; }

# What an engine needs to find an image, and to pull one.
KIT_PULLS='REGISTRY_AUTH_FILE|SSL_CERT_*|STORAGE_*|CONTAINER_*|XDG_*|DBUS_*'

# kit::forget_shell - what the ranks get does not depend on the shell that submitted them: of its variables the job's own are in
# env.sh, and what the nodes set comes with each step. See docs/environment.md.
kit::forget_shell() {
  # Where programs and libraries are: by environment modules, venv, conda; without a container the ranks need it.
  local kit_kept='LD_LIBRARY_PATH|LD_PRELOAD|PYTHONPATH|PYTHONHOME|VIRTUAL_ENV*|CONDA_*|MODULE*|LMOD_*|__LMOD_*|LOADEDMODULES|_LMFILES_*|__MODULES_*|_ModuleTable*|BASH*'
  kit_kept+='|PYENV_*|OPAL_PREFIX|PMIX_INSTALL_PREFIX|PRTE_PREFIX|I_MPI_ROOT|LANG|LANGUAGE|LC_*|TZ|TMPDIR|XDG_*|DBUS_*|KRB5CCNAME'
  [[ "${KIT_RUNTIME}" != @(docker|podman) ]] || kit_kept+="|*_proxy|*_PROXY|${KIT_PULLS}"
  kit::keep "${kit_kept}"
}

# kit::forget_host - where the rest of the host's environment would reach the container: it is none of the image's, and paths
# into the host's Python would break that of the image. What the ranks need travels as arguments.
kit::forget_host() { kit::keep PS1; } # that of kit shell

# kit::keep [PATTERNS] - unsets what is exported, but for those, Slurm's and kit's variables, and what any program needs.
kit::keep() {
  local -r kit_kept="@(SLURM*|_SLURM_*|SPANK_*|SBATCH_*|SRUN_*|KIT_*|NNODES|NPROC_PER_NODE|CUDA_VISIBLE_DEVICES|ROCR_VISIBLE_DEVICES\
|HIP_VISIBLE_DEVICES|GPU_DEVICE_ORDINAL|ZE_AFFINITY_MASK|NVIDIA_DRIVER_CAPABILITIES|MELLANOX_VISIBLE_DEVICES|ENROOT_*|APPTAINER_*|SINGULARITY_*|DOCKER_*|CONTAINERS_*\
|PATH|HOME|USER|LOGNAME|SHELL|PWD|HOSTNAME|TERM${1:+|$1})"
  local kit_name
  while IFS= read -r kit_name; do
    # shellcheck disable=SC2053  # the right side is a pattern
    [[ "${kit_name}" == ${kit_kept} ]] || unset "${kit_name}" 2>/dev/null || true # some are bash's own, and read-only
  done < <(compgen -e)
}

# image::check_submitted - the image is still the one that the job was submitted with: it may have waited for hours.
image::check_submitted() {
  [[ -z "${KIT_FINGERPRINT}" || -z "${KIT_SUBMITTED_FINGERPRINT}" || "${KIT_FINGERPRINT}" == "${KIT_SUBMITTED_FINGERPRINT}" ]] ||
    kit::die "${KIT_IMAGE} is not the image that this job was submitted with: its fingerprint is ${KIT_FINGERPRINT}, not ${KIT_SUBMITTED_FINGERPRINT}" \
      "put that one back, or submit again; to start with this one: empty KIT_SUBMITTED_FINGERPRINT and KIT_SUBMITTED_SHA256 in ${KIT_RUN_DIR}/env.sh"
}

# image::check - the image is here, and is the one that the first node sees.
image::check() {
  [[ -r "${KIT_IMAGE}" ]] ||
    kit::die "the image ${KIT_IMAGE} does not exist here or cannot be read" "put it on a file system that every node sees"
  [[ ! -f "${KIT_IMAGE}" || "$(image::fingerprint "${KIT_IMAGE}")" == "${KIT_FINGERPRINT}" ]] ||
    kit::die "${KIT_IMAGE} is another image here than on the first node" \
      "it was just replaced and this node has not noticed: submit again; or it is a copy on this node's own disk: copy it again"
}

# image::fingerprint FILE - the same 16 digits as kit/images.py: size and both ends tell two builds apart. A byte in between that a disk
# changed is found where a node copies the image.
image::fingerprint() {
  local -r image="$1"
  local digest
  digest="$(set -o pipefail && { stat -Lc %s -- "${image}" && head -c 1048576 -- "${image}" && tail -c 1048576 -- "${image}"; } | sha256sum)" ||
    kit::die "the image ${image} cannot be read" "see the line above; try: head -c 1 '${image}'"
  printf '%s\n' "${digest:0:16}"
}

# scratch::make - sets KIT_MINE, this user's own folder on this node's disk.
scratch::make() {
  KIT_MINE="${KIT_SCRATCH:-/tmp}/kit-${UID}"
  (umask 077 && mkdir -p -- "${KIT_MINE}") ||
    kit::die "cannot write below ${KIT_SCRATCH:-/tmp}" "name a writable node-local folder: \`scratch: /local\` in the cluster's profile"
  # Others may write to /tmp: a folder that somebody else prepared there is not ours to trust.
  [[ -O "${KIT_MINE}" && ! -L "${KIT_MINE}" ]] ||
    kit::die "${KIT_MINE} belongs to somebody else" "have it removed, or name another scratch folder in the cluster's profile"
}

# scratch::need FOLDER BYTES WHAT - dies where that does not fit.
scratch::need() {
  local -r folder="$1" what="$3"
  local -ri needed="$2"
  local -i free
  free="$(df --output=avail --block-size=1 -- "${folder}" | tail -n 1)"
  ((free >= needed)) ||
    kit::die "${folder} has $((free / 1048576)) MiB free; ${what} needs $((needed / 1048576))" \
      "free some, or name another scratch folder in the cluster's profile"
}
