# shellcheck disable=SC2154  # its variables are rank.sh's, too
# peers.sh - whether the ranks ever met: programs that each believe to be alone end as well as ranks that train together. It
# looks at the sockets of a rank's processes and needs nothing of the program. What it finds is worth a warning, and no more. MPI has
# other ways to meet, and TensorFlow and Ray other words for it.
# only: KIT_LAUNCHER!=mpi
# only: KIT_LAUNCHER!=tensorflow
# only: KIT_LAUNCHER!=ray

source "${KIT_RUN_DIR}/lib/interface.sh"

# peers::begin - sets the caller's `kit_has_peers` where the ranks are to meet, and looks for that while the program runs.
peers::begin() {
  [[ -n "${KIT_EVENTS:-}" ]] && ((${WORLD_SIZE:-NNODES * NPROC_PER_NODE} > 1)) || return 0
  kit_has_peers=yes
  [[ "${KIT_LAUNCHER:-}" != spawn ]] || kit_before="$(peers::connections '[4568]')" || true
  exec {kit_watching}> >(
    exec {kit_asking}>&- >/dev/null 2>&1
    peers::watch
  )
}

# peers::watch - reads the program's process id and looks, every second at first, until one of its processes is connected with
# another rank, or until the rank closes its input.
peers::watch() {
  trap '' TERM INT HUP USR1 USR2
  local kit_program kit_answer
  local -i kit_looks=0 kit_pause_s=1
  read -r kit_program || return 0
  while :; do
    kit_answer=0
    read -r -t "${kit_pause_s}" _ || kit_answer=$?
    ((kit_answer > 128)) || return 0
    if peers::are_met "${kit_program}"; then
      peers::note
      return
    fi
    ((++kit_looks < 20)) || kit_pause_s+=kit_pause_s # then after 2, 4, 8 seconds ...
  done
}

peers::note() { event::note met rank "${RANK}"; }

# peers::are_met PROCESS - whether it, or one that it started, has a TCP connection within this machine or to the master's, but not
# to another of its own. Under `spawn` its own processes are the node's ranks: on one node that is enough, and of several one must
# have left its machine.
peers::are_met() {
  local -a kit_processes=("$1") kit_files=()
  local -A kit_own=() kit_ends=()
  local -i kit_i
  local kit_line kit_here kit_there kit_state kit_inode kit_master='' kit_hex=''
  local -r kit_socket='/fd/[0-9]+ -> socket:.([0-9]+)' kit_mapped=0000000000000000FFFF0000 # IPv4 in IPv6
  for ((kit_i = 0; kit_i < ${#kit_processes[@]}; kit_i++)); do rank::add_children "${kit_processes[kit_i]}"; done
  for kit_line in "${kit_processes[@]}"; do kit_files+=("/proc/${kit_line}"/fd/*); done
  while IFS= read -r kit_line; do
    [[ ! "${kit_line}" =~ ${kit_socket} ]] || kit_own[${BASH_REMATCH[1]}]=yes
  done < <(ls -l "${kit_files[@]}" 2>/dev/null)
  while read -r _ kit_here kit_there kit_state _ _ _ _ _ kit_inode _; do
    [[ "${kit_state}" == 01 && -n "${kit_own[${kit_inode}]:-}" ]] || continue
    kit_ends["${kit_here#"${kit_mapped}"} ${kit_there#"${kit_mapped}"}"]=yes
  done < <(peers::connections 1)
  [[ ! "${MASTER_ADDR:-}" =~ ^[0-9.]+$|: || "${MASTER_ADDR}" == 127.* ]] || interface::hex "${MASTER_ADDR}"
  for ((kit_i = 0; kit_i < ${#kit_hex}; kit_i += 8)); do # the kernel shows each four bytes in the machine's order
    kit_master+="${kit_hex:kit_i+6:2}${kit_hex:kit_i+4:2}${kit_hex:kit_i+2:2}${kit_hex:kit_i:2}"
  done
  kit_master="${kit_master^^}"
  for kit_line in "${!kit_ends[@]}"; do
    kit_here="${kit_line% *}" kit_there="${kit_line#* }"
    if [[ -n "${kit_ends["${kit_there} ${kit_here}"]:-}" ]]; then
      [[ "${KIT_LAUNCHER:-}" != spawn ]] || ((NNODES > 1)) || return 0
    elif [[ "${kit_there%:*}" == "${kit_here%:*}" || "${kit_there%:*}" == "${kit_master}" || "${KIT_LAUNCHER:-}" == spawn ]]; then
      return 0
    fi
  done
  return 1
}

# peers::connections STATES - the lines of the kernel's tables; 1 is established, A listens, and the others are closing.
# Becomes grep: for subshells.
peers::connections() { exec grep -hE " 0$1 " /proc/net/tcp /proc/net/tcp6 2>/dev/null; }

# peers::have_parted - whether a connection between ranks has just ended, which a look once a second may have missed: one with the
# master's port; under `spawn` on one node, where programs choose a port themselves, one within this machine to a port that nobody listens on
# now. kit_before has those that were there before the program.
peers::have_parted() {
  local -A kit_listening=()
  local -a kit_closing=()
  local kit_here kit_there kit_state kit_port kit_line
  printf -v kit_port '%04X' "${MASTER_PORT:-0}"
  while read -r _ kit_here kit_there kit_state _; do
    case "${kit_state}" in
      0A) kit_listening[${kit_here##*:}]=yes ;;
      0[4568])
        [[ "${kit_before}" != *"${kit_here} ${kit_there} "* ]] || continue
        [[ "${kit_here##*:}" != "${kit_port}" && "${kit_there##*:}" != "${kit_port}" ]] || return 0
        if [[ "${KIT_LAUNCHER:-}" == spawn && "${NNODES}" == 1 && "${kit_here%:*}" == "${kit_there%:*}" ]]; then
          kit_closing+=("${kit_here##*:} ${kit_there##*:}")
        fi
        ;;
    esac
  done < <(peers::connections '[4568A]')
  for kit_line in "${kit_closing[@]}"; do
    [[ -n "${kit_listening[${kit_line% *}]:-}${kit_listening[${kit_line#* }]:-}" ]] || return 0
  done
  return 1
}

# peers::judge PROGRAM... - at the rank's end: notes what was just parted, and of rank 0 by which means its program would have met
# the others, as its text or its log says. Where ranks of this node are known to have met, the kernel's tables are not read again, which
# takes the longest of all at a rank's end.
peers::judge() {
  local kit_noted=''
  [[ ! -f "${KIT_EVENTS}" ]] || IFS= read -r -d '' kit_noted 2>/dev/null <"${KIT_EVENTS}" || true
  [[ "${kit_noted}" == *"\"attempt\": ${KIT_ATTEMPT}, \"event\": \"met\""* ]] || ! peers::have_parted || peers::note
  ((RANK == 0)) || return 0
  local -a kit_files=() kit_words
  local kit_word kit_found
  if [[ -f "${KIT_RUN_DIR}/script.sh" ]]; then # the program is what the job's own lines start
    read -rd '' -a kit_words <"${KIT_RUN_DIR}/script.sh" || true
    set -- "${kit_words[@]//\"\$\{KIT_CODE\}\"/"${KIT_CODE:-.}"}"
  fi
  for kit_word; do
    [[ ! -f "${kit_word}" || "${kit_word}" != *.@(py|sh|bash) ]] || kit_files+=("${kit_word}")
    kit_word="${kit_word//.//}"
    [[ ! -f "${kit_word}.py" ]] || kit_files+=("${kit_word}.py") # of python -m
    [[ ! -f "${kit_word}/__main__.py" ]] || kit_files+=("${kit_word}/__main__.py")
  done
  ! peers::is_alone "$*" "${kit_files[@]}" || event::note alone framework accelerate
  kit_found="$({
    grep -oE '(^| |/)(accelerate launch|torchrun) ' < <(printf '%s\n' "$*") | tr -d ' '
    grep -ohE 'lightning|accelerate|deepspeed|torchrun|torch\.distributed|init_process_group|DistributedDataParallel' -- "${kit_files[@]}" /dev/null
    head -c 100000 -- "${kit_log}" | grep -oE '[Ll]ightning'
  } 2>/dev/null || true)"
  for kit_word in ightning:lightning accelerate deepspeed torchrun torch.distributed init_process_group:torch.distributed DistributedDataParallel:torch.distributed; do
    [[ "${kit_found}" != *"${kit_word%:*}"* ]] || { event::note shares framework "${kit_word#*:}" && return; }
  done
  # Several ranks of torch under torchrun: see peers::warn, for a rank does not know its launcher there.
  ! grep -qsE '^[[:space:]]*(import|from) torch([ .,]|$)' -- "${kit_files[@]}" /dev/null || event::note shares framework torch
}

# peers::warn - on the first node, at the end: where a program that means its ranks to meet left no trace of that.
peers::warn() {
  local framework fix who="${NNODES} programs" how="another node's" what="${NNODES} trainings of one node"
  local -r under="under \`launcher: torchrun\`" ranks="$((NNODES * NPROC_PER_NODE))"
  local found
  found="$(event::of 'alone|shares|met')" # nothing where the disk is full, or its folder is gone
  if [[ "${found}" == *'"event": "alone"'* ]]; then
    peers::tell "${ranks} ranks ended with 0, and no rank saw a GPU, without which Accelerate trains in each rank alone" \
      "for CPUs: env: {ACCELERATE_USE_CPU: \"true\"}, or Accelerator(cpu=True)"
    return
  fi
  [[ "${found}" == *'"event": "shares"'* && "${found}" != *'"event": "met"'* ]] || return 0
  framework="${found#*'"framework": "'}" framework="${framework%%\"*}"
  [[ "${framework}" != torch || "${KIT_LAUNCHER}" == torchrun ]] || return 0
  fix="have the script itself as the command, ${under}"
  case "${framework}" in
    lightning) fix="Trainer(num_nodes=${NNODES}, devices=${NPROC_PER_NODE}, strategy=\"ddp\"), ${under}" ;;
    accelerate)
      fix+=": Accelerator() reads its variables, and accelerate launch sets others"
      # shellcheck disable=SC2016  # the user writes it like this
      [[ ! -f "${KIT_RUN_DIR}/script.sh" ]] || fix='`accelerate launch --num_machines "$NNODES" --machine_rank "$NODE_RANK" ...` in the script, as in docs/your-line.md'
      ;;
    deepspeed) fix+=", and call deepspeed.init_distributed()" ;;
    torchrun) fix="have the script that torchrun starts as the command: \`launcher: torchrun\` starts it in the job's own ranks" ;;
    *) fix="have every rank call torch.distributed.init_process_group(): docs/launchers.md" ;;
  esac
  if [[ "${KIT_LAUNCHER}" != spawn ]] || ((NNODES == 1)); then
    who="${ranks} ranks" how=another what="${ranks} trainings of one rank"
  fi
  peers::tell "${who} ended with 0, but none was ever connected with ${how}: were these ${what}?" "${fix}"
}

# peers::tell PROBLEM FIX - also to those who ask for the run later.
peers::tell() {
  event::note never_met problem "$1" fix "$2"
  printf 'kit: warning: %s\n  fix: %s\n' "$1" "$2" >&2 || true
}

# peers::is_alone WORDS FILE... - whether the program is one of Accelerate, which finds no device here and was told of no CPU: it
# connects its ranks even so, and trains in each of them alone. Any `cpu=` tells it, as `not cuda.is_available()`, but
# for False, None, and `args.cpu`: what the command line says of a CPU is in WORDS.
peers::is_alone() {
  local -r kit_words="$1"
  shift
  [[ "${KIT_LAUNCHER:-}" != spawn && -z "${ACCELERATE_USE_CPU:-}${PJRT_DEVICE:-}" && "${kit_words}" != *cpu* ]] || return 1
  ! peers::has_device || return 1
  grep -qsE '^[[:space:]]*(from|import) accelerate' -- "$@" /dev/null && ! grep -qsE '(^|[^[:alnum:]_])(use_)?cpu *= *[^=FN[:space:]][[:alnum:]_]*([^.[:alnum:]_]|$)' -- "$@" /dev/null
}

# peers::has_device - whether there is anything but a CPU to train on.
peers::has_device() {
  [[ -n "${CUDA_VISIBLE_DEVICES-all}" ]] || return 1 # hidden
  { compgen -G '/dev/nvidia[0-9]*' || compgen -G '/dev/dri/renderD*' || compgen -G '/dev/accel/accel*' || [[ -e /dev/kfd ]]; } >/dev/null
}
