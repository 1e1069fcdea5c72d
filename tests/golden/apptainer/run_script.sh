#!/usr/bin/env bash
#SBATCH --job-name="digits & more"
#SBATCH --nodes=2
#SBATCH --exclusive
#SBATCH --comment="say \"hi\" # no comment"
#
# run_script.sh - sbatch starts it on the first node of the job; srun then starts it again on every node, first as
# "run_script.sh prepare", and when all are ready as "run_script.sh start".
#
# Read in this order: run_script.sh, then the launcher's script beside it, then your program.
# Every value comes from env.sh. To submit by hand: sbatch run_script.sh
set -euo pipefail +o posix # names with :: are none to a POSIX shell, which POSIXLY_CORRECT makes of bash

# sbatch runs a copy of this script in a folder of its own; the #SBATCH line --chdir above puts the job here.
KIT_RUN_DIR="${BASH_SOURCE[0]%/*}"
[[ "${KIT_RUN_DIR}" == /* && -r "${KIT_RUN_DIR}/env.sh" ]] || KIT_RUN_DIR="${PWD}"
readonly KIT_RUN_DIR
export KIT_RUN_DIR
cd -- "${KIT_RUN_DIR}" # the user's start-up file (BASH_ENV) may have gone elsewhere
if [[ ! -r "${KIT_RUN_DIR}/env.sh" ]]; then
  printf 'kit: error: %s: no env.sh in %s\n  fix: %s\n' "${SLURMD_NODENAME:-${HOSTNAME}}" "${KIT_RUN_DIR}" \
    "the run directory must be on a file system that every node sees; if it was moved: sbatch --chdir=NEW_PLACE run_script.sh" >&2
  exit 1
fi
# shellcheck source=/dev/null
source "${KIT_RUN_DIR}/env.sh"

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

# stamps.sh - moments of a run's start, for `kit timeline`: noted without a fork, and never a reason to fail.

# stamp::now - sets KIT_NOW: seconds since 1970, by this machine's clock.
stamp::now() {
  KIT_NOW="${EPOCHREALTIME:-}"
  if [[ -n "${KIT_NOW}" ]]; then
    KIT_NOW="${KIT_NOW/[!0-9]/.}" # the locale may have put a comma
  else
    printf -v KIT_NOW '%(%s)T' -1 # bash before 5.0
  fi
}

# stamp::write FILE LINE... - appends them; where the disk is full or the folder gone, the run goes on without.
stamp::write() { { printf '%s\n' "${@:2}" >>"$1"; } 2>/dev/null || true; }

# remove.sh - the one place where these scripts remove a folder with what is in it.

# remove::tree PATH NAME - removes a folder, or a file, of which the name matches NAME, a regular expression. Fails, and
# removes nothing, for another name, /, the home, a link, what belongs to somebody else, and where anything is mounted.
remove::tree() {
  local -r path="$1" name="$2"
  [[ "${path##*/}" =~ ^(${name})$ && -O "${path}" && ! -L "${path}" ]] || return
  [[ ! "${path}" -ef / && ! "${path}" -ef "${HOME:-/}" ]] || return
  remove::has_no_mount "$(realpath -- "${path}")" || return
  rm -rf --one-file-system -- "${path}"
}

# remove::has_no_mount PATH - nor is one; rm and mountpoint tell other file systems alone, not other folders of the same one.
remove::has_no_mount() {
  local point
  while read -r _ _ _ _ point _; do
    printf -v point '%b' "${point//\\/\\0}" # the kernel writes a blank as \040, and %b reads \0040
    [[ "${point}/" != "$1"/* ]] || return
  done </proc/self/mountinfo
}

# secrets.sh - the values of the job's secrets: in a file of the run directory that its owner alone can read, put there at
# submission and removed at the run's end. They are never an argument, and in no environment but the program's.

# secrets::find - sets KIT_SECRETS_FILE; each task of an array has one of its own, to remove.
secrets::find() { KIT_SECRETS_FILE="${KIT_RUN_DIR}/.secrets/${SLURM_ARRAY_TASK_ID:-values}"; }

# secrets::are_there - also for a run without any.
secrets::are_there() {
  [[ -n "${KIT_SECRETS:-}" ]] || return 0
  secrets::find
  [[ -r "${KIT_SECRETS_FILE}" ]]
}

# secrets::take - last, in the shell that then becomes the program: no other process has them in its environment. The file
# holds NAME=value entries that end in NUL; nothing in it is code.
secrets::take() {
  [[ -n "${KIT_SECRETS:-}" ]] || return 0
  inside::check_secrets
  local -r kit_options="$-"
  local kit_pair
  set +vx # a trace of these scripts is not to show them
  while IFS='' LC_ALL=C read -r -d '' kit_pair; do export "${kit_pair?}"; done <"${KIT_SECRETS_FILE}"
  [[ "${kit_options}" != *v* ]] || set -v
  [[ "${kit_options}" != *x* ]] || set -x
}

# runtimes/apptainer.sh - runs the image file as it is; there is nothing to create.
# images: .sif .sqsh .squashfs folder

runtime::check() {
  command -v apptainer >/dev/null ||
    kit::die "apptainer is not installed here" "install it on every node (module load apptainer?), or choose another runtime"
  image::check
}

runtime::prepare() { :; }

runtime::exec() {
  [[ -z "${TMPDIR:-}" ]] || export APPTAINER_TMPDIR="${APPTAINER_TMPDIR:-${TMPDIR}}"
  kit::forget_host
  # Without --no-home, packages in ~/.local shadow those of the image. --pwd is --cwd, known to old versions, too.
  # The current folder is mounted below, if the job sees it.
  local -a kit_args=(--no-home --no-mount cwd --pwd "${KIT_WORKDIR}")
  [[ ! -e /dev/nvidiactl ]] || kit_args+=(--nv)
  [[ ! -e /dev/kfd ]] || kit_args+=(--rocm)
  [[ -z "${KIT_REMAP_ROOT}" ]] || kit_args+=(--fakeroot)
  local -i kit_i
  local kit_mount
  for ((kit_i = 0; kit_i < ${#KIT_MOUNTS[@]}; kit_i += 3)); do
    # --mount reads a line of CSV: quoted fields keep commas, colons and spaces; a quote is doubled.
    kit_mount="type=bind,\"source=${KIT_MOUNTS[kit_i]//\"/\"\"}\",\"destination=${KIT_MOUNTS[kit_i + 1]//\"/\"\"}\""
    [[ "${KIT_MOUNTS[kit_i + 2]}" != ro ]] || kit_mount+=",ro"
    kit_args+=(--mount "${kit_mount}")
  done
  exec apptainer --quiet exec "${kit_args[@]}" "${KIT_IMAGE}" "$@"
}

# stages/none.sh - the image is used where it lies.

stage::distribute() { :; }
stage::prepare() { :; }
stage::use() { :; }

# nodes/all.sh - the job starts on all nodes that it has.

nodes::choose() { :; }
nodes::answer() { :; }

# preempt/none.sh - a preempted job, and one whose time is up, just end.

preempt::listen() { :; }
preempt::begin() { :; }
preempt::asked() { return 1; }
preempt::stopped() { :; }
preempt::submit() { return 1; }

# blame.sh - which rank is at fault, by what all of them noted and said: the batch part's word, which `kit why` takes over.

# What a rank says when others are gone or late; `kit why` has the same words in launch/kit/why/ends.py.
readonly KIT_GONE='Connection closed by|[Cc]onnection (was |likely )*(closed|reset)|Broken pipe|Connection refused|connectFullMesh failed|ncclRemoteError|Failed to recv, got 0 bytes|failed to recv|remote process exited|Watchdog caught collective|NCCL operations have failed|Heartbeat monitor timed out|collective timeout|failed to pass monitoredBarrier|Timed out waiting|Timed out after [0-9]+ seconds waiting|wait timeout after|Application timeout caused pair closure|client socket has (timed out|failed)|Socket Timeout'

# blame::first SRUN_CODE - prints RANK CODE NODE LOCAL_RANK HOW AFTER, or nothing where no rank can be blamed. HOW is "failed";
# "left": it ended with 0, and others missed it; or "missing": the others waited for it. AFTER is how many lines of its log
# follow the exception that ended it. CODE is the job's.
blame::first() { (cd -- "${KIT_LOG_DIR}" && blame::facts "$1" | LC_ALL=C GONE="${KIT_GONE}" awk "${KIT_JUDGE}") 2>/dev/null || true; }

# blame::facts SRUN_CODE - the notes of the ranks, when each was written, which ranks ended; then the ends of all logs, 64 MB in all.
blame::facts() {
  local name code node local_rank
  local -a logs=(rank*.out)
  local -i most=$((67108864 / ${#logs[@]}))
  most=$((most > 1048576 ? 1048576 : most < 16384 ? 16384 : most))
  for name in rank*.failed; do
    [[ -e "${name}" ]] || continue
    # A full disk leaves the note empty.
    read -r code node local_rank <"${name}" || code="$1" node='' local_rank=''
    printf '@note %d %d %s %s\n' "${name//[!0-9]/}" "${code}" "${node:--}" "${local_rank:--}"
  done
  # The file server's clock is one clock; the nodes' own may differ.
  printf '%s\0' rank*.failed rank*.out | xargs -0 stat -c '@time %.9Y %n' -- || true
  (cd -- "${KIT_STAMP_FOLDER}" && grep -E '^(rank|ended) ' node.* /dev/null | sed -En 's/^node[.]([^:]*):(rank|ended) /@\2 \1 /p') || true
  printf '@logs\n'
  printf '%s\0' "${logs[@]}" | xargs -0 tail -v -c "${most}" --
}

# A rank failed by itself (0); so it did, but it had spoken of others before, or was ended meanwhile (1); a connection of its
# own broke (2); or it only missed other ranks (3). The smallest is the first, of equal ones the earliest. Of several exceptions
# in a chain the first one counts: what clean-up makes of it may be anything.
# shellcheck disable=SC2016 # awk's own variables
readonly KIT_JUDGE='
function kind_of(type, text, file) {
  if (text ~ GONE) return type ~ /^(RuntimeError|torch\.|c10)|Dist[A-Za-z]*Error$|Rendezvous|^nccl/ ? 3 : 2
  if (type ~ /(Connection|BrokenPipe|Timeout)[A-Za-z]*Error$/ || text == "EOFError") return 2
  return type ~ /^RuntimeError$|^torch\./ && file ~ /torch\/distributed\/(distributed_c10d|rendezvous)\.py"/ ? 2 : 0
}
function settle() {
  if (root == "" || settled) return
  type = root; sub(/:.*/, "", type); sub(/[ \t]*$/, "", type)
  kind = kind_of(type, root, root_file)
  settled = 1
}
function keep() {
  if (rank == "") return
  settle()
  has[rank] = root != ""; kinds[rank] = kind; is_logged[rank] = logged; spoken[rank] = spoke
  said_last[rank] = noise == after; after_lines[rank] = after; words[rank] = root; last_words[rank] = tail3 tail2 tail1
}
function reset() {
  root = root_file = file = before = tail1 = tail2 = tail3 = ""
  inside = chained = more = kind = logged = settled = spoke = after = noise = 0
}
function better(g, t, r) { return best == "" || g < best_grade || (g == best_grade && (t < best_time || (t == best_time && r + 0 < best + 0))) }
function choose(g, t, r, c) { if (better(g, t "", r)) { best = r; best_grade = g; best_time = t ""; best_code = c } }
BEGIN { GONE = ENVIRON["GONE"]; rank = "" }
!in_logs && $1 == "@note" { noted[$2] = 1; code[$2] = $3; if ($4 != "-") node[$2] = $4; if ($5 != "-") local_rank[$2] = $5; next }
!in_logs && $1 == "@time" { time[$3] = $2; next }
!in_logs && $1 == "@rank" { if (node[$3] == "") node[$3] = $2; next }
!in_logs && $1 == "@ended" { if (node[$3] == "") node[$3] = $2; if (local_rank[$3] == "") local_rank[$3] = $5; ended[$3] = $4; ended_time[$3] = $6; next }
$0 == "@logs" && !in_logs { in_logs = 1; next }
/^==> rank[0-9]+\.out <==$/ { keep(); rank = $2; gsub(/[^0-9]/, "", rank); seen[rank] = 1; reset(); next }
{
  sub(/\r+$/, ""); sub(/.*\r/, ""); sub(/^\[rank[0-9]+\]: ?/, "")
}
/^kit: .*: attempt [0-9]+$/ { reset(); next }
/Traceback \(most recent call last\)/ {
  after++
  if (before ~ /^Exception ignored/) { noise++; ignoring = 1; before = $0; next }
  ignoring = 0
  settle()
  if (!chained) {
    if (root ~ GONE) spoke = 1
    root = ""; settled = 0; logged = before ~ /ERROR|CRITICAL|Exception in thread/
  }
  inside = 1; file = ""; before = $0
  next
}
{
  after++
  is_noise = ignoring || more > 0 || $0 ~ /[Ww]arning|^Terminated|^Killed|^Exception ignored|^ *$|^\[[WE]|^  warnings\.warn/
  if (is_noise) noise++
  if (ignoring && $0 !~ /^ /) ignoring = 0
}
inside && /^[ \t|+]*File "/ { file = $0; next }
inside && (/^[ \t]/ || $0 == "") { next }
inside {
  inside = 0; after = noise = chained = 0; more = 8
  if (root == "") { root = $0; root_file = file; settled = 0; growing = 1 } else growing = 0
  before = $0
  next
}
/^(The above exception was the direct cause|During handling of the above exception)/ { chained = 1; more = 0; next }
more > 0 {
  if ($0 == "" || /^\[|^Terminated|^Exception ignored/) more = 0
  else { more--; if (growing) root = root "\n" $0 }
}
$0 != "" {
  if (chained) chained = 0
  if ($0 ~ GONE) spoke = 1
  before = $0; tail3 = tail2; tail2 = tail1; tail1 = $0
}
END {
  keep()
  for (r in noted) {
    c = code[r]
    t = time["rank" r ".failed"]
    if (c > 128 && c != 129 && c != 130 && c != 143) g = c == 134 && (last_words[r] ~ GONE || words[r] ~ GONE) ? 3 : 0
    else if (has[r] && c == 1 && !(is_logged[r] && t - time["rank" r ".out"] > 0.9)) { # with 1, an exception ends Python
      g = kinds[r] == 0 && spoken[r] ? 1 : kinds[r]
      if (said_last[r] && time["rank" r ".out"] "" < t "") t = time["rank" r ".out"]
    } else if (has[r] && said_last[r] && kinds[r] == 3) g = 3
    else g = spoken[r] || (has[r] && words[r] ~ GONE) ? 2 : c == 129 || c == 130 || c == 143 ? 1 : 0
    choose(g, t, r, c)
  }
  for (r in seen) {
    if (r in noted || (r in ended && ended[r] == 0)) continue
    if (!has[r]) { if (!spoken[r]) { silent++; missing = r; is_silent[r] = 1 } continue }
    # It was ended while it failed, or its shell was killed.
    if (!is_logged[r] && kinds[r] == 0 && said_last[r] && words[r] !~ /[Ss]ignal|SIGTERM|SIGINT|KeyboardInterrupt|SystemExit/)
      choose(1, time["rank" r ".out"], r, ended[r] > 0 && ended[r] < 128 ? ended[r] : 1)
  }
  if (best == "") exit
  how = "failed"
  if (best_grade == 3) {
    for (r in ended) if (ended[r] == 0 && (left == "" || ended_time[r] "" < ended_time[left] "")) left = r
    if (left == "" && match(words[best], /Ranks? [0-9]+ failed to pass/)) {
      named = substr(words[best], RSTART, RLENGTH); gsub(/[^0-9]/, "", named)
      if (is_silent[named]) { missing = named; silent = 1 }
    }
    if (left != "") { best = left; how = "left" } else if (silent == 1) { best = missing; how = "missing" }
  }
  print best, best_code, (node[best] == "" ? "-" : node[best]), (local_rank[best] == "" ? "-" : local_rank[best]), how, (has[best] ? after_lines[best] : 0)
}'

# beside.sh - commands beside the ranks, in the job's container: what `kit exec` runs, and the shell of `kit shell`.

# beside::shell VERB NODE... - on the machine where salloc runs this, when all nodes are ready: becomes a shell, or Jupyter,
# on one of the job's nodes, by its name or its number; more words are for jupyter.sh.
beside::shell() {
  local -r verb="$1"
  local -a hosts command=(bash) facts=("${KIT_FACTS[@]}")
  local host address
  mapfile -t hosts < <(batch::hosts)
  KIT_HOSTS="$(IFS=, && printf '%s' "${hosts[*]}")"
  host="$(beside::host "$2" "${hosts[@]}")" || exit 1 # -e does not reach into $(...)
  if [[ "${verb}" == jupyter ]]; then
    address="$(net::address "${host}")" || exit 1
    command=(bash "${KIT_RUN_DIR}/jupyter.sh" "${address}" "${@:3}")
  else
    beside::explain "${host}" "${#hosts[@]}"
    facts+=("PS1=(kit ${KIT_ID} ${host}) \\w \\$ ")
  fi
  batch::stamp launch
  batch::keep_stamps
  trap - EXIT # nothing of this script is left to note the end
  exec <&"${KIT_TERMINAL}" {KIT_TERMINAL}<&-
  beside::attach "${host}" "${facts[@]}" "KIT_HOSTS=${KIT_HOSTS}" -- "${command[@]}"
}

# beside::host WORD HOST... - the host of that name or number.
beside::host() {
  local -i number=0
  local host
  for host in "${@:2}"; do
    [[ "$1" != "${host}" && "$1" != "${number}" ]] || { printf '%s\n' "${host}" && return; }
    number+=1
  done
  kit::die "the job has no node $1" "name one of: ${*:2}; or its number, from 0"
}

# beside::explain HOST COUNT - how to start by hand what the job file says, unless it says nothing: then the command is `true`.
beside::explain() {
  kit::say "a shell on ${1}; the job ends with it"
  [[ "${KIT_COMMAND[*]}" != true && "${KIT_TASKS_PER_NODE}" == 1 ]] || return 0
  if (($2 == 1)); then
    kit::say "to start the job's command: bash \"\${KIT_RUN_DIR}/${KIT_LAUNCHER}.sh\""
  else
    kit::say "to start the job's command on all nodes, in another terminal: kit exec ${KIT_ID} --node all -- bash $(printf '%q' "${KIT_RUN_DIR}/${KIT_LAUNCHER}.sh")"
  fi
}

# beside::attach HOST[,HOST...] NAME=VALUE... -- COMMAND... - a step of the job SLURM_JOB_ID on those nodes, which shares what the
# ranks have. On any machine where srun is. What a command on several nodes says comes with the node's name in front.
beside::attach() {
  kit::forget_shell
  local -a hosts facts=()
  IFS=, read -ra hosts <<<"$1"
  shift
  while [[ "$1" != -- ]]; do
    export "${1?}"
    facts+=("$1")
    shift
  done
  local binds
  binds="$(slurm::binds)"
  local -a step=(
    srun --jobid="${SLURM_JOB_ID}" --overlap
    --nodelist="$(IFS=, && printf '%s' "${hosts[*]}")" --nodes="${#hosts[@]}" --ntasks="${#hosts[@]}" --ntasks-per-node=1
    ${binds:+--cpu-bind=none} --mpi=none --export=ALL --kill-on-bad-exit=0 --wait=0
  )
  beside::forget_slurm
  stage::use
  if declare -F runtime::srun_args >/dev/null; then
    # Devices are those of the nodes: this machine may have none.
    # shellcheck disable=SC2034  # enroot.sh reads it
    local -a KIT_ON_NODE=("${step[@]}" --quiet)
    runtime::srun_args </dev/null
    step+=("${KIT_SRUN_ARGS[@]}")
  fi
  if ((${#hosts[@]} == 1)); then
    [[ ! -t 0 || ! -t 1 ]] || step+=(--pty)
    exec "${step[@]}" bash "${KIT_RUN_DIR}/run_script.sh" exec "${facts[@]}" "$@"
  fi
  "${step[@]}" --label bash "${KIT_RUN_DIR}/run_script.sh" exec "${facts[@]}" "$@" 2>&1 | beside::name_nodes "${hosts[@]}"
}

# The step's shape is said in full; the allocation's variables would add theirs, such as one CPU for each task.
beside::forget_slurm() {
  local name
  for name in "${!SLURM_@}" "${!SRUN_@}"; do
    case "${name}" in
      SLURM_CONF | SLURM_CLUSTERS | SLURM_JWT | SLURM_ARRAY_*) ;; # env.sh knows an array's task by its number
      *) [[ -n "${KIT_LOOPBACK:-}" ]] || unset "${name}" ;;       # the stand-in for srun has nobody to ask
    esac
  done
}

# beside::name_nodes HOST... - puts names for srun's numbers of tasks.
beside::name_nodes() {
  local -a hosts=("$@")
  local line number
  while IFS= read -r line || [[ -n "${line}" ]]; do
    number="${line%%:*}"
    if [[ "${line}" == *:* && "${number// /}" =~ ^[0-9]+$ ]]; then
      printf '[%s] %s\n' "${hosts[number]}" "${line#*: }"
    else
      printf '%s\n' "${line}" # srun's own
    fi
  done
}

# beside::exec NAME=VALUE... -- COMMAND... - on a node, in the step: becomes the command inside the container.
beside::exec() {
  while [[ "$1" != -- ]]; do
    export "${1?}"
    shift
  done
  local -a hosts
  local -i rank=0
  IFS=, read -ra hosts <<<"${KIT_HOSTS}"
  while ((rank < ${#hosts[@]} - 1)) && [[ "${hosts[rank]}" != "$(kit::node)" ]]; do rank+=1; done
  export NODE_RANK="${rank}" KIT_BESIDE=yes
  # By the first rank's number the engines name the node's container.
  [[ -z "${KIT_LOOPBACK:-}" ]] || export SLURM_PROCID=$((rank * KIT_TASKS_PER_NODE))
  stage::use
  node::set_facts
  local become=runtime::exec
  # Most runtimes start one more container like that of the ranks; some enter the very same.
  ! declare -F runtime::enter >/dev/null || become=runtime::enter
  "${become}" bash "${KIT_RUN_DIR}/${KIT_LAUNCHER}.sh" "${KIT_NODE_FACTS[@]}" "$@"
}

# ---------------------------------------------------------------- on the first node, once

# batch::main [shell|jupyter NODE...] - instead of the ranks, what `kit shell` wants.
batch::main() {
  kit::forget_shell
  [[ -n "${SLURM_JOB_NODELIST:-}" ]] ||
    kit::die "not inside a Slurm job" "submit with: sbatch ${KIT_RUN_DIR}/run_script.sh (without Slurm: kit run)"
  [[ -z "${SLURM_HET_SIZE:-}" ]] ||
    kit::die "this is a heterogeneous job" "ask for nodes of one kind; torchrun needs the same number of ranks on each"
  secrets::are_there ||
    kit::die "the values of this run's secrets are not here (${KIT_SECRETS}): kit puts them there at submission, and a run removes them at its end" \
      "start it again with the values read anew: kit rerun ${KIT_RUN_DIR}"
  KIT_GOES_ON='' # whether there is to be another attempt
  trap batch::forget_secrets EXIT
  # bash runs a trap only between commands, so it notes the signal, and what waits for srun looks at the note.
  KIT_SIGNAL=''
  trap 'KIT_SIGNAL=TERM' TERM
  preempt::listen
  KIT_STAMPED=()
  batch::stamp start
  local -r restart="${SLURM_RESTART_COUNT:-0}"
  KIT_ID="${SLURM_JOB_ID}" # its logs' name; that of an array's task is Slurm's usual one
  [[ -z "${SLURM_ARRAY_JOB_ID:-}" ]] || KIT_ID="${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"
  KIT_LOG_DIR="${KIT_RUN_DIR}/log/${KIT_ID}"
  mkdir -p -- "${KIT_LOG_DIR}"
  # What the logs have from here on is not of an attempt before a requeue.
  rm -f -- "${KIT_LOG_DIR}"/rank*.failed "${KIT_LOG_DIR}"/node*.failed
  ((restart == 0)) || kit::say "job ${KIT_ID} on ${SLURM_JOB_NODELIST}: attempt $((restart + 1))"
  KIT_HOSTS="${SLURM_JOB_NODELIST}" # a host list, such as node[1-4]: bash handles 10,000 names only where each is needed
  # sbatch --nodes=N on the command line beats the #SBATCH line; what was allocated is what counts.
  NNODES="${SLURM_JOB_NUM_NODES:-${SLURM_NNODES}}"
  nodes::choose
  local master=''
  read -r master < <(batch::hosts) || kit::die "scontrol does not expand '${KIT_HOSTS}'" "check that slurmctld answers: scontrol ping"

  MASTER_ADDR=127.0.0.1
  ((NNODES == 1)) || MASTER_ADDR="$(net::address "${master}")" # one node alone needs no network
  local near="${MASTER_ADDR}"
  (($# == 0)) || near=127.0.0.1 # from a login node the way there may be closed
  MASTER_PORT="$(net::port "${SLURM_JOB_ID}" "${restart}" "${near}")"
  KIT_RENDEZVOUS_ID="${SLURM_JOB_ID}.${restart}"
  KIT_ADDRESSES=''
  [[ -z "${KIT_NEEDS_ADDRESSES}" ]] || batch::write_addresses "${restart}"
  KIT_MPI_TYPE=none
  [[ -z "${KIT_MPI}" ]] || KIT_MPI_TYPE="$(batch::mpi)"
  KIT_FINGERPRINT=''
  [[ ! -f "${KIT_IMAGE}" ]] || KIT_FINGERPRINT="$(image::fingerprint "${KIT_IMAGE}")"
  image::check_submitted
  export NNODES MASTER_ADDR MASTER_PORT KIT_LOG_DIR KIT_RENDEZVOUS_ID KIT_ADDRESSES KIT_FINGERPRINT
  batch::begin_stamps "${restart}"

  kit::say "job ${KIT_ID} on ${SLURM_JOB_NODELIST}: ${NNODES} nodes x ${NPROC_PER_NODE} processes," \
    "runtime ${KIT_RUNTIME}, master ${MASTER_ADDR}:${MASTER_PORT}"

  preempt::begin
  batch::choose_srun
  batch::stamp distribute
  stage::distribute
  batch::stamp prepare
  batch::keep_stamps
  batch::make_ready
  batch::set_facts
  (($# == 0)) || beside::shell "$@"
  batch::start_ranks
}

# batch::hosts - the names of the nodes that the job starts on, in Slurm's order: the first is the master.
batch::hosts() { scontrol show hostnames "${KIT_HOSTS}"; }

# batch::set_facts - what the tasks are told; and written down, for `kit exec`.
batch::set_facts() {
  local name
  KIT_FACTS=()
  for name in NNODES MASTER_ADDR MASTER_PORT KIT_LOG_DIR KIT_RENDEZVOUS_ID KIT_ADDRESSES KIT_FINGERPRINT; do KIT_FACTS+=("${name}=${!name}"); done
  stamp::write "${KIT_STAMP_FOLDER}/facts" "${KIT_FACTS[@]}" "KIT_HOSTS=${KIT_HOSTS}"
}

# batch::begin_stamps RESTART - the moments of this attempt are kept in memory, and written three times.
batch::begin_stamps() {
  KIT_STAMP_FOLDER="${KIT_LOG_DIR}/stamps/$(($1 + 1))"
  mkdir -p -- "${KIT_STAMP_FOLDER}" 2>/dev/null || true
  KIT_STAMPED+=("nodes ${KIT_HOSTS}")
  trap 'batch::stamp end "$?"; batch::keep_stamps; batch::forget_secrets' EXIT
}

# batch::forget_secrets - at the end of the run; not where Slurm starts this job again, or may do so.
batch::forget_secrets() {
  [[ -n "${KIT_SECRETS:-}" && -z "${KIT_GOES_ON}" ]] && secrets::are_there || return 0
  local facts restarts
  facts=" $(scontrol show job -o "${KIT_ID:-${SLURM_JOB_ID}}" 2>/dev/null || true) "
  restarts="$(sed -n 's/.* Restarts=\([0-9]*\).*/\1/p' <<<"${facts}")"
  # Where Slurm does not answer, kit removes them when it sees that the job has ended.
  [[ "${facts}" == *' JobState='* ]] && ((${restarts:-0} <= ${SLURM_RESTART_COUNT:-0})) || return 0
  # Preempted, and not yet back in the queue: a site may give jobs some time to end.
  [[ "${facts}" != *' Requeue=1 '* || "${facts}" != *' PreemptTime='[0-9]* ]] || return 0
  rm -f -- "${KIT_SECRETS_FILE}" || true
  # Another task of an array may need its own.
  [[ -n "$(cd -- "${KIT_RUN_DIR}/.secrets" && compgen -G '*')" ]] || remove::tree "${KIT_RUN_DIR}/.secrets" '\.secrets' || true
}

# batch::stamp WHAT [MORE] - notes a moment of the whole run.
batch::stamp() {
  stamp::now
  KIT_STAMPED+=("$1 ${KIT_NOW}${2:+ $2}")
}

batch::keep_stamps() {
  ((${#KIT_STAMPED[@]} == 0)) || stamp::write "${KIT_STAMP_FOLDER}/batch" "${KIT_STAMPED[@]}"
  KIT_STAMPED=()
}

# batch::write_addresses RESTART - of all nodes, a line each, for launchers that need them; the master's is enough for most.
# Sets KIT_ADDRESSES to their file: what 10,000 nodes have is too long for an argument.
batch::write_addresses() {
  local -a hosts addresses
  local host address
  mapfile -t hosts < <(batch::hosts)
  # One call for all. Of each host's lines the first has its name, too.
  mapfile -t addresses < <(getent ahostsv4 "${hosts[@]}" 2>/dev/null | sed -n 's/ *STREAM ..*//p')
  addresses[0]="${MASTER_ADDR}" # found with more care; and one node alone needs no network
  if ((${#addresses[@]} != ${#hosts[@]})) || [[ " ${addresses[*]:1}" == *' 127.'* ]]; then
    addresses=("${MASTER_ADDR}")
    for host in "${hosts[@]:1}"; do
      address="$(net::address "${host}")" || exit 1 # -e does not reach into $(...)
      addresses+=("${address}")
    done
  fi
  KIT_ADDRESSES="${KIT_LOG_DIR}/addresses.$1" # a requeued job's nodes may have an older file in memory
  printf '%s\n' "${addresses[@]}" >"${KIT_ADDRESSES}"
}

# batch::choose_srun - sets KIT_SRUN, to which a step adds its tasks and where their output goes; and KIT_SRUN_EACH, which
# starts one task on every node, whose errors go to the node's log.
batch::choose_srun() {
  KIT_SRUN=(
    srun
    --nodes="${NNODES}"
    --kill-on-bad-exit=1 # one dead node must not leave the others waiting in a collective
    --wait=0             # but a node that ends well may end long before one that still writes a checkpoint
    --export=ALL         # sbatch --export=NONE is inherited otherwise
    --open-mode=append   # a requeued job keeps its id: keep the first attempt's output
  )
  # Without spares these are all of the job's nodes.
  ((KIT_SPARES == 0)) || KIT_SRUN+=(--nodelist="${KIT_HOSTS}")
  KIT_BINDS="$(slurm::binds)"
  # Since 22.05 srun does not inherit the job's --cpus-per-task.
  [[ -z "${SLURM_CPUS_PER_TASK:-}" ]] || KIT_SRUN+=(--cpus-per-task="${SLURM_CPUS_PER_TASK}")
  KIT_SRUN_EACH=(
    "${KIT_SRUN[@]}" --ntasks="${NNODES}" --ntasks-per-node=1 ${KIT_BINDS:+--cpu-bind=none} --mpi=none --error="log/${KIT_ID}/%N.out"
  )
}

# batch::make_ready - checks and containers on every node, in a step of its own: the ranks start when all are
# ready, since a rendezvous gives the others little time, and would not say which is late.
batch::make_ready() {
  local pipe answers all_said rc line number=''
  # Each node answers with its name and its moments, over srun's own connection. bash reads a pipe by the character, so what
  # 10,000 nodes say goes past it: tee keeps it, or goes on without where the disk is full, and ends when srun has. srun is a job,
  # since bash 4.4 waits only for the process substitution that it started last. A second pipe, which those behind it alone hold
  # open, gets the number of answers at their end: a read whose time is up just then would lose a line, but not the end.
  exec {pipe}<> <(:)
  exec {all_said}<"/proc/self/fd/${pipe}"
  exec {answers}> >(
    trap '' TERM INT HUP USR1 USR2 # it ends with srun, not with a signal to the job
    exec 1>&"${pipe}" 2>/dev/null
    tee -- "${KIT_STAMP_FOLDER}/ready" | grep -cE '^[^ ]+( [0-9.]+){3}$'
  )
  exec {pipe}>&-
  "${KIT_SRUN_EACH[@]}" bash "${KIT_RUN_DIR}/run_script.sh" prepare >&"${answers}" {answers}>&- {all_said}<&- &
  local -ri srun_pid=$! begin_s=SECONDS
  exec {answers}>&-
  local -i report_s=30
  while :; do
    rc=0
    ! preempt::asked || exit 1
    read -r -t 1 -u "${all_said}" line || rc=$?
    if ((rc == 0)); then
      number="${line}" # and the end is to come
      continue
    elif ((rc <= 128)); then
      break # srun has ended
    elif ((SECONDS - begin_s >= KIT_READY_TIMEOUT_S)); then
      kill -TERM "${srun_pid}" 2>/dev/null || true
      kit::die "not ready after ${KIT_READY_TIMEOUT_S} s: $(batch::late | batch::first_ten)" \
        "what they were doing: ${KIT_LOG_DIR}/NODE.out; without them: sbatch --exclude=NODE run_script.sh; with more time: ready_timeout_s"
    elif ((SECONDS - begin_s >= report_s)); then
      kit::say "waiting since ${report_s} s for $(batch::late | wc -l) of ${NNODES} nodes: $(batch::late | batch::first_ten)"
      report_s+=report_s # 30 s, 60 s, 2 minutes ...
      batch::keep_stamps
    fi
    # Of the answers so far it is known by now that they came before this moment.
    batch::stamp heard "$(stat -c %s -- "${KIT_STAMP_FOLDER}/ready" 2>/dev/null || printf 0)"
  done
  exec {all_said}<&-
  rc=0
  wait "${srun_pid}" || rc=$?
  [[ -z "${KIT_SIGNAL}" ]] || batch::end "${rc}"
  ((rc == 0)) || batch::explain_failure "${rc}"
  # srun's 0 does not say that it started everywhere. A full disk cuts the file short, and a busy machine may lose the number.
  ((${number:-0} >= NNODES)) || [[ -z "$(batch::late)" ]] || batch::explain_absence "$(batch::late | batch::first_ten)" 'no answer to the preparing step'
  batch::stamp all-ready
}

# batch::late - the nodes that have not answered.
batch::late() { batch::hosts | grep -vxFf <(cut -d ' ' -f 1 -- "${KIT_STAMP_FOLDER}/ready" 2>/dev/null) || true; }

# batch::first_ten - of the nodes on its input.
batch::first_ten() {
  local -a nodes
  mapfile -t nodes < <(sort --version-sort)
  printf '%s' "${nodes[*]:0:10}"
  ((${#nodes[@]} <= 10)) || printf ' and %d more' "$((${#nodes[@]} - 10))"
}

batch::start_ranks() {
  local -a step=(
    "${KIT_SRUN[@]}"
    --ntasks="$((NNODES * KIT_TASKS_PER_NODE))"
    --ntasks-per-node="${KIT_TASKS_PER_NODE}"
    --distribution=block:block # ranks follow the nodes, and on a node the sockets: Slurm's default deals them out in turn
    # Where the ranks share the node's one task, binding would pin them all to its CPUs.
    ${KIT_BINDS:+--cpu-bind="${KIT_CPU_BIND}"}
    --mpi="${KIT_MPI_TYPE}"
    --output="log/${KIT_ID}/%N.out"
  )
  # A job without --cpus-per-task, such as one with --exclusive, has all CPUs of its nodes; but a bound task would get one.
  if [[ "${KIT_CPU_BIND}" != none && -z "${SLURM_CPUS_PER_TASK:-}" ]] && ((${SLURM_CPUS_ON_NODE:-0} > KIT_TASKS_PER_NODE)); then
    step+=(--cpus-per-task="$((SLURM_CPUS_ON_NODE / KIT_TASKS_PER_NODE))")
  fi
  stage::use
  if declare -F runtime::srun_args >/dev/null; then
    runtime::srun_args
    step+=("${KIT_SRUN_ARGS[@]}")
  fi
  local ending='' rc
  [[ -z "${KIT_SIGNAL}" ]] || exit 143 # it came before there was anything to end
  ! preempt::asked || exit 1
  batch::stamp launch
  batch::keep_stamps
  # Under Pyxis the script starts inside, where the image's variables win over what is exported here: so as arguments.
  "${step[@]}" bash "${KIT_RUN_DIR}/run_script.sh" start "${KIT_FACTS[@]}" &
  local -r srun_pid=$!
  while :; do
    rc=0
    wait "${srun_pid}" || rc=$?
    ! preempt::asked "${srun_pid}" || continue
    [[ -n "${KIT_SIGNAL}" ]] || break
    KIT_SIGNAL=''
    [[ -n "${ending}" ]] || batch::explain_end
    ending=yes
  done
  [[ -z "${ending}" ]] || exit "$((rc > 0 ? rc : 143))"
  ((rc == 0)) || batch::explain_failure "${rc}"
  batch::check_ends
  batch::warn_of_strangers
  kit::say "all ranks ended well"
}

# batch::check_ends - srun's 0 alone is not believed: each rank that began has to have noted its end, and one at least of each task.
# Where the disk takes no notes, or a launcher of the site's own makes none, there is nothing to count.
batch::check_ends() {
  local -i tries
  local absent=''
  batch::stamp ranks-ended
  batch::keep_stamps
  [[ -f "${KIT_STAMP_FOLDER}/batch" && "$(grep -cE '^(launch|ranks-ended) ' -- "${KIT_STAMP_FOLDER}/batch")" == 2 ]] || return 0
  for ((tries = 0; tries < 10; tries++)); do # another node's notes may take a moment to show
    ((tries == 0)) || sleep 1
    : >"${KIT_STAMP_FOLDER}/.refresh" && rm -f -- "${KIT_STAMP_FOLDER}/.refresh" # what an NFS client remembers of the folder
    absent="$(batch::unended | batch::first_ten)"
    [[ -n "${absent}" ]] || return 0
  done
  batch::explain_absence "${absent}" 'ranks there did not all begin and end'
}

# batch::unended - the nodes on which not all ranks noted that they ended.
batch::unended() (
  local hosts
  shopt -s nullglob
  cd -- "${KIT_STAMP_FOLDER}" 2>/dev/null || return 0
  hosts="$(batch::hosts)" && [[ -n "${hosts}" ]] || return 0 # Slurm may not answer at the end
  # shellcheck disable=SC2016 # awk's own variables
  LC_ALL=C awk -v tasks="${KIT_TASKS_PER_NODE}" '
    NR == FNR { host[NR] = "node." $1; next }
    $1 == "rank" { begun[$2] = FILENAME }
    $1 == "ended" { over[$2] = 1; ended[FILENAME]++; notes++ }
    END {
      if (!notes) exit
      for (rank in begun) if (!(rank in over)) bad[begun[rank]] = 1
      for (i = 1; i in host; i++) if (host[i] in bad || ended[host[i]] < tasks) print substr(host[i], 6)
    }
  ' - node.* 2>/dev/null <<<"${hosts}" || true
)

# batch::warn_of_strangers - where a program that means its ranks to meet left no trace of that: see peers.sh.
batch::warn_of_strangers() {
  local framework fix
  framework="$(sed -n 's/^shares //p' -- "${KIT_STAMP_FOLDER}"/node.* 2>/dev/null | head -n 1)" || true # a full disk leaves no stamps
  [[ -n "${framework}" ]] && ! grep -qs '^met ' -- "${KIT_STAMP_FOLDER}"/node.* || return 0
  case "${framework}" in
    lightning) fix="Trainer(num_nodes=${NNODES}, devices=${NPROC_PER_NODE}, strategy=\"ddp\"), under \`launcher: torchrun\`" ;;
    accelerate) fix="have the script itself as the command, under \`launcher: torchrun\`: Accelerator() reads its variables, and accelerate launch sets others" ;;
    deepspeed) fix="have the script itself as the command, under \`launcher: torchrun\`, and call deepspeed.init_distributed()" ;;
    *) fix="have every rank call torch.distributed.init_process_group(): docs/launchers.md" ;;
  esac
  printf 'kit: warning: %d ranks ended with 0, but none was ever connected with another: were these %d trainings of one rank?\n  fix: %s\n' \
    "$((NNODES * NPROC_PER_NODE))" "$((NNODES * NPROC_PER_NODE))" "${fix}" >&2
}

# batch::mpi - how the image's MPI learns its rank; none for other programs, since a site's default of pmix makes srun
# wait for an MPI program.
batch::mpi() {
  local -r known=" $(srun --mpi=list 2>&1 | tr -s '[:space:],' ' ') "
  local type
  for type in pmix pmi2; do
    [[ "${known}" != *" ${type} "* ]] || { printf '%s' "${type}" && return; }
  done
  kit::die "this site's Slurm has neither pmix nor pmi2 for MPI programs" "see: srun --mpi=list; programs without MPI: \`launcher: srun\`"
}

# batch::end CODE - after a signal.
batch::end() {
  batch::explain_end
  exit "$(($1 > 0 ? $1 : 143))"
}

# Slurm ends the job: cancelled, out of time, preempted, or a node is gone. What Slurm itself prints names only the first node.
batch::explain_end() {
  local facts state restarts node node_state
  facts=" $(scontrol show job -o "${KIT_ID}" 2>/dev/null || true) "
  state="$(sed -n 's/.* JobState=\([^ ]*\).*/\1/p' <<<"${facts}")"
  restarts="$(sed -n 's/.* Restarts=\([0-9]*\).*/\1/p' <<<"${facts}")"
  if ((${restarts:-0} > ${SLURM_RESTART_COUNT:-0})); then
    KIT_GOES_ON=yes
    kit::say "Slurm takes this job back into the queue, for attempt $((restarts + 1)): it was preempted, requeued, or a node is gone"
    return
  fi
  local fix="if nobody cancelled it: a node may be gone (below), or its time up (\`time:\`)"
  if [[ "${facts}" == *' PreemptTime='[0-9]* ]]; then
    state=PREEMPTED # while a job ends, Slurm says COMPLETING of all
    fix="a job of higher priority took its place, and this site does not start it again; \`on_preempt: checkpoint\` does"
    ! preempt::submit || return 0
  fi
  batch::forget_secrets # the ranks have them; and Slurm may kill this script, too, before they have ended
  printf 'kit: error: %s: this job is being ended (%s)\n  fix: %s\n' "$(kit::node)" "${state:-state unknown}" "${fix}" >&2
  while read -r node node_state; do
    case "${node_state}" in
      down* | fail* | *'*') printf 'kit: error: %s: this node is %s\n  fix: %s\n' "${node}" "${node_state}" \
        "submit again without it: sbatch --exclude=${node} run_script.sh (kit submit JOB --slurm exclude=${node})" >&2 ;;
    esac
  done < <(sinfo --noheader --Node --nodes="${SLURM_JOB_NODELIST}" --format='%N %T' 2>/dev/null | sort -u || true)
}

# batch::explain_failure SRUN_CODE - ends with the code of the rank that failed first. torchrun turns every code
# into 1, and srun returns the largest of all nodes, so each rank notes its own (see the launcher's script).
batch::explain_failure() {
  local -r srun_code="$1"
  local -a failed=()
  # Making a file there refreshes what an NFS client remembers of the folder.
  : >"${KIT_LOG_DIR}/.refresh" && rm -f -- "${KIT_LOG_DIR}/.refresh"
  mapfile -t failed < <(cd -- "${KIT_LOG_DIR}" && ls -tr -- rank*.failed 2>/dev/null)
  local node='' words='' code='' local_rank='' rank='' at='' how='' after=0
  batch::ask_srun
  # Not a rank: a node said why, or srun did, above. The others were killed for it, with a larger code than its 1.
  if ((${#failed[@]} == 0)) && (cd -- "${KIT_LOG_DIR}" && compgen -G 'node*.failed' >/dev/null); then
    batch::refusals >&2
    exit 1
  fi
  if ((${#failed[@]})) && [[ "${words}" == Killed ]] && ! (cd -- "${KIT_LOG_DIR}" && grep -qF -- " ${node} " "${failed[@]}"); then
    batch::explain_silence # what ranks of other nodes noted is that those of this one were gone
  fi
  if ! read -r rank code at local_rank how after < <(blame::first "${srun_code}"); then
    ((${#failed[@]})) || batch::explain_silence
    # Without awk, the oldest.
    rank="${failed[0]//[!0-9]/}" how=failed after=0
    read -r code at local_rank <"${KIT_LOG_DIR}/${failed[0]}" || code="${srun_code}" # a full disk leaves the note empty
  fi
  local who="rank ${rank} (local rank ${local_rank})"
  [[ "${KIT_LAUNCHER}" != spawn ]] || who="the program of node ${rank}" # its ranks are its own
  case "${how}" in
    failed)
      preempt::stopped "${code}"
      how="$(batch::outcome "${code}")"
      ;;
    left) how='left with code 0, while others still waited for it' ;;
    missing)
      how='was not where the others waited for it: it hung, or was killed with its shell'
      if [[ "${words}" == Killed && "${node}" == "${at}" ]]; then code=137; fi
      ;;
  esac
  batch::show_end "${at}: ${who} ${how}" "rank${rank}.out" "${after}"
  exit "${code}"
}

# batch::refusals - what nodes said when they could not start: each reason once, behind the names of all nodes that gave it.
batch::refusals() {
  local -A nodes=() said=()
  local -a reasons=()
  local line node='' reason=''
  while IFS= read -r line || [[ -n "${line}" ]]; do
    if [[ "${line}" == 'kit: error: '*': '* ]]; then
      line="${line#kit: error: }"
      node="${line%%: *}" reason="${line#*: }"
      continue
    fi
    reason+=$'\n'"${line}" # its fix
    [[ -n "${nodes["${reason}"]+set}" ]] || reasons+=("${reason}")
    [[ -n "${said["${node} ${reason}"]+set}" ]] || nodes["${reason}"]+="${node}"$'\n' # each of its tasks may have said it
    said["${node} ${reason}"]=yes
  done < <(cat -- "${KIT_LOG_DIR}"/node*.failed)
  for reason in "${reasons[@]}"; do
    printf 'kit: error: %s: %s\n' "$(printf '%s' "${nodes["${reason}"]}" | batch::first_ten)" "${reason}"
  done
}

# batch::ask_srun - sets the caller's `node` and `words` to what srun said of the first task to fail. It stands in the job's own
# log, whose place the #SBATCH lines set; after the last attempt's first line.
batch::ask_srun() {
  IFS=: read -r node words < <(tac -- "${KIT_RUN_DIR}/log/slurm-${KIT_ID}.out" 2>/dev/null | sed "/^kit: [^ ]*: job ${KIT_ID} on /q" | tac |
    sed -n 's/^srun: error: \([^ :]*\): tasks\{0,1\} [^:]*: \(.*\)/\1:\2/p' | head -n 1) || true
}

# batch::explain_silence - nobody on the caller's `node` could say why: its first process was killed, or did not even start. Ends
# with its code.
batch::explain_silence() {
  if [[ -z "${node}" ]]; then
    batch::show_end "no rank could say why it ended, or none started${KIT_IMAGE:+ from ${KIT_IMAGE}} (srun: code ${srun_code})" \
      "$(cd -- "${KIT_LOG_DIR}" && compgen -G '*.out' | head -n 1)"
    exit "${srun_code}"
  fi
  code="${srun_code}"
  [[ "${words}" != Killed ]] || code=137
  [[ ! "${words}" =~ code\ ([0-9]+) ]] || code="${BASH_REMATCH[1]}"
  batch::show_end "${node}: nothing there could say why its part of the job ended (srun: ${words}${KIT_IMAGE:+; image ${KIT_IMAGE}})" "${node}.out"
  case "${code}" in
    126 | 127) printf '  fix: see whether %s has %s: it must be on a file system that every node sees\n' "${node}" "${KIT_RUN_DIR}" >&2 ;;
    137) printf '  fix: its first process was killed, by the kernel when memory is short, or by hand: see dmesg there\n' >&2 ;;
  esac
  exit "${code}"
}

# batch::explain_absence NODES PROBLEM - what srun says of them is above, in the job's log; Slurm 22.05 ends with 0 all the same.
batch::explain_absence() {
  printf 'kit: error: %s: %s, though srun ended with 0\n  fix: see whether %s is there: it must be on a file system that every node sees\n' \
    "$1" "$2" "${KIT_RUN_DIR}" >&2
  exit 1
}

# batch::show_end PROBLEM LOG [AFTER] - the problem, and the last lines of one of the job's logs, of this attempt alone; without
# those AFTER its exception, where they are many.
batch::show_end() {
  printf 'kit: error: %s; the end of log/%s/%s:\n' "$1" "${KIT_ID}" "$2" >&2
  local -a lines=()
  local line
  local -i skipped="${3:-0}"
  ((skipped > 15)) || skipped=0
  while IFS= read -r line; do
    lines+=("  | ${line}")
    [[ "${line}" != 'kit: '*': attempt '* ]] || lines=()
  done < <(tail -n "$((20 + skipped))" -- "${KIT_LOG_DIR}/$2" 2>/dev/null | head -n 20 | cut -b 1-2000)
  ((${#lines[@]} == 0)) || printf '%s\n' "${lines[@]}" >&2
}

batch::outcome() {
  local -ri code="$1"
  if ((code > 128)) && kill -l "$((code - 128))" >/dev/null 2>&1; then
    printf 'was killed by SIG%s' "$(kill -l "$((code - 128))")"
    ((code != 137)) || printf ' (the usual sender is the kernel, out of memory)'
  else
    printf 'exited with code %d' "${code}"
  fi
}

# ---------------------------------------------------------------- on every node

node::check_start() {
  [[ -n "${KIT_LOG_DIR:-}" && -n "${SLURM_NODEID:-}" ]] ||
    kit::die "this part of run_script.sh is started by srun" "submit with: sbatch run_script.sh"
  # What ends this node, for the batch part to show; in a file, since the log may hold earlier attempts.
  readonly KIT_FAILURE_FILE="${KIT_LOG_DIR}/node${SLURM_NODEID}.failed"
}

# node::prepare - all that this node needs before its ranks start; then its name and the moments of that, for the batch part.
node::prepare() {
  local begun staged
  stamp::now
  begun="${KIT_NOW}"
  node::check_mounts
  [[ "${SLURM_NODEID}" != 0 || -n "${KIT_LOOPBACK:-}" ]] || node::check_master
  stage::prepare
  stamp::now
  staged="${KIT_NOW}"
  runtime::check
  runtime::prepare
  stamp::now
  printf '%s %s %s %s\n' "${SLURMD_NODENAME:-${HOSTNAME}}" "${begun}" "${staged}" "${KIT_NOW}" >&"${KIT_ANSWER}"
}

# Rank 0's process listens on MASTER_ADDR, so it must be an address of this node.
node::check_master() {
  command -v ip >/dev/null || return 0
  [[ " $(ip -4 -brief address show 2>/dev/null | tr -s '/\n' ' ') " == *" ${MASTER_ADDR} "* ]] ||
    kit::die "this node has rank 0, but not the address ${MASTER_ADDR} at which the others will look for it" \
      "correct this node's entry in DNS or /etc/hosts, or its NodeAddr in slurm.conf"
}

node::start() {
  stamp::now
  export KIT_BEGUN="${KIT_NOW}"
  export KIT_STAMPS="${KIT_LOG_DIR}/stamps/$((${SLURM_RESTART_COUNT:-0} + 1))/node.${SLURMD_NODENAME:-${HOSTNAME}}"
  # srun expands nothing here: SLURM_NODEID is this step's, while in the batch part it is always 0.
  export NODE_RANK="${SLURM_NODEID}" NNODES="${SLURM_NNODES}"
  stage::use
  node::set_facts
  # exec all the way down: Slurm signals only the step's first process.
  runtime::exec bash "${KIT_RUN_DIR}/${KIT_LAUNCHER}.sh" "${KIT_NODE_FACTS[@]}"
}

# node::choose_interface - where this node's own name is a loopback address, as Debian installs it, or none at all, Gloo and
# TensorPipe would listen on loopback and nobody reach them: they get the interface of the way to the master, unless one was chosen.
node::choose_interface() {
  ((NNODES > 1)) && [[ -z "${KIT_LOOPBACK:-}" && -r /proc/net/route ]] && command -v getent >/dev/null || return 0
  local name address interface
  read -r name </proc/sys/kernel/hostname # in a step HOSTNAME is that of the batch script's node
  # Of a name without an address Gloo thinks the same.
  read -r address _ < <(getent ahostsv4 "${name}" 2>/dev/null) || address=127.0.0.1
  [[ "${address}" == 127.* ]] || return 0
  interface="$(net::interface "${MASTER_ADDR}" </proc/net/route)"
  [[ -n "${interface}" ]] || return 0
  export GLOO_SOCKET_IFNAME="${GLOO_SOCKET_IFNAME:-${interface}}" TP_SOCKET_IFNAME="${TP_SOCKET_IFNAME:-${interface}}"
}

# node::set_facts - a container may start from an empty environment or from its image's, so what belongs to this start, and what
# the node says of its fabric, travels as arguments, which every runtime hands on as they are. Adds the mounts that these need.
node::set_facts() {
  local kit_name
  KIT_NODE_FACTS=()
  node::choose_interface
  unset SLURM_JWT # a secret, which process lists would show
  for kit_name in NODE_RANK NNODES MASTER_ADDR MASTER_PORT KIT_LOG_DIR KIT_RENDEZVOUS_ID KIT_ADDRESSES KIT_LOOPBACK KIT_STAMPS KIT_BEGUN USER \
    "${!SLURM_@}" "${!SLURMD_@}" "${!PMIX_@}" "${!PMI_@}" "${!OMPI_@}" CUDA_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES ZE_AFFINITY_MASK \
    "${!NCCL_@}" "${!RCCL_@}" "${!UCX_@}" "${!FI_@}" "${!GLOO_@}" "${!CUDA_MPS_@}" "${!SLINGSHOT_@}" TP_SOCKET_IFNAME; do
    [[ -z "${!kit_name+set}" ]] || KIT_NODE_FACTS+=("${kit_name}=${!kit_name}")
  done
  # What they name on this node: where Slurm's PMIx listens, and the MPS daemon; how the GPUs are connected.
  for kit_name in PMIX_SERVER_TMPDIR CUDA_MPS_PIPE_DIRECTORY NCCL_TOPO_FILE; do
    [[ -z "${!kit_name:-}" || ! -e "${!kit_name}" ]] || KIT_MOUNTS+=("${!kit_name}" "${!kit_name}" rw)
  done
}

# KIT_MOUNTS is a flat list of source, target and ro or rw.
node::check_mounts() {
  local -i i
  local source
  for ((i = 0; i < ${#KIT_MOUNTS[@]}; i += 3)); do
    source="${KIT_MOUNTS[i]}"
    [[ -e "${source}" ]] ||
      kit::die "the mount source ${source} does not exist here" "make it on every node, or put it on a shared file system"
    [[ -r "${source}" && (! -d "${source}" || -x "${source}") ]] ||
      kit::die "the mount source ${source} cannot be read by $(id -un)" "check its owner and mode: ls -ld '${source}'"
    [[ "${KIT_MOUNTS[i + 2]}" != ro || "${KIT_RUNTIME}" == none ]] || node::warn_of_writable_below "${source}"
  done
}

# node::warn_of_writable_below FOLDER - runtimes make the file system of a mount read-only, and leave those that are mounted
# below it as they are.
node::warn_of_writable_below() {
  local root place options
  local -a writable=()
  [[ -r /proc/self/mountinfo ]] || return 0
  root="$(readlink -f -- "$1")"
  while read -r _ _ _ _ place options _; do
    printf -v place '%b' "${place//\\/\\0}" # the kernel writes a blank as \040, and %b reads \0040
    [[ "${place}" != "${root%/}"/* || ",${options}," == *,ro,* ]] || writable+=("${place}")
  done </proc/self/mountinfo
  ((${#writable[@]} == 0)) ||
    kit::say "only the file system of $1 itself is read-only for this job: what is mounted below it can be written, such as ${writable[0]}"
}

case "${1:-batch}" in
  batch) batch::main ;;
  prepare)
    node::check_start
    exec {KIT_ANSWER}>&1 >&2 # what tools print is for the log
    ((${SLURM_RESTART_COUNT:-0} == 0)) || kit::say "attempt $((SLURM_RESTART_COUNT + 1))"
    node::prepare
    ;;
  missing) stage::missing ;;       # with stage sbcast
  check) nodes::answer "${@:2}" ;; # with spares
  start)
    for fact in "${@:2}"; do export "${fact?}"; done
    node::check_start
    node::start
    ;;
  shell | jupyter)                    # kit shell: salloc starts it
    exec {KIT_TERMINAL}<&0 </dev/null # what is typed meanwhile is for the shell
    trap 'exit 130' INT
    batch::main "$@"
    ;;
  attach) beside::attach "${@:2}" ;; # kit exec
  exec) beside::exec "${@:2}" ;;     # both, on the node
  *) kit::die "unknown argument '$1'" "sbatch run_script.sh takes none" ;;
esac
