#!/usr/bin/env bash
# torchrun.sh - runs inside the container, once on every node: starts torchrun, which starts the ranks.
# tasks-per-node: 1
# restarts: yes
#
# The arguments NAME=VALUE are what run_script.sh knows of this node. By hand, on one machine:
#   bash torchrun.sh NNODES=1 NODE_RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=61000 KIT_LOG_DIR="$PWD/log"
set -euo pipefail +o posix

# inside.sh - what every launcher does first inside the container.

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

# inside::die PROBLEM FIX - to this node's log, and to the file from which the batch part learns it.
inside::die() {
  local file=/dev/null
  [[ -z "${KIT_LOG_DIR:-}" || -n "${KIT_INSTEAD[*]:-}" ]] || file="${KIT_LOG_DIR}/node${NODE_RANK}.failed"
  printf 'kit: error: %s: %s\n  fix: %s\n' "${SLURMD_NODENAME:-${HOSTNAME}}" "$1" "$2" | tee -a "${file}" >&2
  exit 1
}

# inside::report_overridden - the job's variables that the image, or a hook of the site, sets to something else. The
# job's values hold; but who set them may want to know what they displace.
inside::report_overridden() {
  local kit_pair kit_name kit_own kit_other
  for kit_pair in "${KIT_ENV[@]}"; do
    kit_name="${kit_pair%%=*}"
    [[ -n "${!kit_name+set}" && "${!kit_name}" != "${kit_pair#*=}" ]] || continue
    printf -v kit_own '%q' "${kit_pair#*=}"
    printf -v kit_other '%q' "${!kit_name}"
    case "${kit_name^^}" in *TOKEN* | *SECRET* | *PASS* | *KEY*) kit_own='(not shown)' kit_other='another value' ;; esac
    printf 'kit: %s: %s is %s as the job says, not %s as the image or the site says\n' \
      "${SLURMD_NODENAME:-${HOSTNAME}}" "${kit_name}" "${kit_own}" "${kit_other}" >&2
  done
}

# inside::job_env - called last, so that nothing wins over the job's own variables. KIT_PATH is the container's own PATH, on
# which the tools of these scripts are: the job's may lead to nothing but the program.
inside::job_env() {
  export KIT_PATH="${PATH}"
  ((${#KIT_ENV[@]} == 0)) || export "${KIT_ENV[@]}"
}

# inside::check_secrets - said before the ranks start, too, and not by each of them.
inside::check_secrets() {
  secrets::are_there ||
    inside::die "the values of the job's secrets cannot be read here: ${KIT_SECRETS_FILE}" \
      "the run directory must be in the container, and this user its owner; if the run has ended: kit rerun reads them anew"
}

# inside::check_gpus - a node that shows fewer GPUs than the job asked for would fail later, in a rank, less clearly, or
# train on its CPUs. CUDA_VISIBLE_DEVICES is Slurm's word, whether or not the container has these devices.
inside::check_gpus() {
  local -a kit_gpus=()
  [[ -n "$(compgen -G '/dev/nvidia[0-9]*' || compgen -G '/dev/dri/renderD*' || compgen -G '/dev/kfd' || compgen -G '/dev/dxg')" ]] ||
    inside::die "no GPU's device file (/dev/nvidia0) is in the container, and the job asked for ${KIT_GPUS_PER_NODE}" \
      "look at the node: nvidia-smi; a container has its GPUs by the NVIDIA container toolkit (enroot, pyxis) or --nv (apptainer)"
  if [[ -n "${CUDA_VISIBLE_DEVICES:-}" ]]; then
    IFS=, read -ra kit_gpus <<<"${CUDA_VISIBLE_DEVICES}"
  elif command -v nvidia-smi >/dev/null; then
    mapfile -t kit_gpus < <(nvidia-smi --list-gpus 2>/dev/null | grep '^GPU')
  else
    return 0 # other makes say nothing that bash could count
  fi
  ((${#kit_gpus[@]} >= KIT_GPUS_PER_NODE)) ||
    inside::die "${#kit_gpus[@]} GPUs are visible in the container, and the job asked for ${KIT_GPUS_PER_NODE}" \
      "look at the node: nvidia-smi; without it: sbatch --exclude=${SLURMD_NODENAME:-${HOSTNAME}} run_script.sh"
}

# inside::begin SCRIPT NAME=VALUE... - every value of this run, those of this start, and a place to work in.
inside::begin() {
  KIT_RUN_DIR="${1%/*}"
  [[ "${KIT_RUN_DIR}" == /* ]] || KIT_RUN_DIR="$(cd -- "$(dirname -- "$1")" && pwd)" # by hand
  export KIT_RUN_DIR
  inside::take "${@:2}" # env.sh reads the number of an array's task
  # shellcheck source=/dev/null
  source "${KIT_RUN_DIR}/env.sh"
  inside::enter "${@:2}"
  ((${#KIT_INSTEAD[@]} == 0)) || inside::become "${KIT_INSTEAD[@]}"
}

# inside::take NAME=VALUE... [-- COMMAND...] - sets KIT_INSTEAD to what runs instead of the ranks, beside those that run.
inside::take() {
  while (($#)) && [[ "$1" != -- ]]; do
    export "${1?}"
    shift
  done
  KIT_INSTEAD=("${@:2}")
}

# inside::become COMMAND... - with the same variables as the ranks have.
inside::become() {
  inside::job_env
  command -v -- "$1" >/dev/null || {
    printf 'kit: error: %s: there is no %s in the container\n  fix: choose another command, or an image that has it\n' "${SLURMD_NODENAME:-${HOSTNAME}}" "$1" >&2
    exit 127
  }
  secrets::take
  exec "$@"
}

# inside::enter NAME=VALUE... - takes this start's facts from the host, goes to the working directory.
inside::enter() {
  inside::take "$@" # they win over env.sh
  stamp::now
  export KIT_ENTERED="${KIT_NOW}"
  inside::check_secrets
  [[ -z "${KIT_SECRETS:-}" ]] || export KIT_SECRETS # their names, for what starts a rank
  # The image is the same everywhere: one process says it.
  [[ "${NODE_RANK}${SLURM_LOCALID:-0}" != 00 || -n "${KIT_INSTEAD[*]:-}" ]] || inside::report_overridden
  # A rehearsal may have fewer; and who looks into a job may look for them.
  if ((KIT_GPUS_PER_NODE > 0)) && [[ -z "${KIT_LOOPBACK:-}${KIT_INSTEAD[*]:-}" ]]; then
    inside::check_gpus
    export KIT_GPUS_PER_NODE # for programs that would rather end than train on a CPU
  fi
  # enroot's PyTorch hook fills these in from Slurm's task count, which is the number of nodes here.
  unset RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE
  export PYTHONUNBUFFERED=1
  if [[ "${KIT_ON_PREEMPT}" == checkpoint ]]; then
    # docs/preemption.md says what a program does with them.
    export KIT_PROGRESS="${KIT_LOG_DIR}/progress" KIT_CHECKPOINT_FILE="${KIT_LOG_DIR}/checkpoint.${SLURM_RESTART_COUNT:-0}"
  fi
  if [[ "${KIT_RUNTIME}" != none ]]; then
    # PyTorch asks for the user's name, and the image may not know this user.
    export USER="${USER:-$(id -un 2>/dev/null || id -u)}"
    # ~/.local may be visible, and its packages would shadow the image's.
    export PYTHONNOUSERSITE=1
    # Caches go to the home folder, which may not be in the container.
    if [[ ! -w "${HOME:-/nonexistent}" ]]; then
      export HOME="/tmp/kit-home-${UID}"
      [[ -d "${HOME}" ]] || (umask 077 && mkdir -p -- "${HOME}")
      # /tmp may be the host's, and code is loaded from these caches.
      [[ -O "${HOME}" && ! -L "${HOME}" ]] || inside::die "${HOME} belongs to somebody else" "have it removed"
    fi
  fi
  inside::use_snapshot
  inside::choose_threads
  cd -- "${KIT_WORKDIR}" || inside::die "the working directory ${KIT_WORKDIR} is not in the container" "add it to the job's mounts"
}

# inside::choose_threads - torchrun would set one thread per rank and leave the other CPUs idle; so would Enroot's PyTorch hook
# where a node has several tasks, unless the image names a number itself.
inside::choose_threads() {
  local -i kit_cpus="${SLURM_CPUS_ON_NODE:-$(nproc)}"
  if [[ "${KIT_RUNTIME}" == @(enroot|pyxis) && -n "${PYTORCH_VERSION:-}" && "${OMP_NUM_THREADS:-}" == 1 ]] && ((KIT_TASKS_PER_NODE > 1)); then
    grep -qs '^OMP_NUM_THREADS=' /etc/environment || unset OMP_NUM_THREADS
  fi
  [[ -z "${SLURM_CPUS_PER_TASK:-}" ]] || kit_cpus=$((SLURM_CPUS_PER_TASK * KIT_TASKS_PER_NODE))
  export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$((kit_cpus > NPROC_PER_NODE ? kit_cpus / NPROC_PER_NODE : 1))}"
}

# inside::use_snapshot - the code as it was at submission comes before what is installed of the same name. A PYTHONPATH of
# the job's own, which replaces this one, begins with it, too.
inside::use_snapshot() { [[ -z "${KIT_CODE:-}" ]] || export KIT_CODE PYTHONPATH="${KIT_CODE}${PYTHONPATH:+:${PYTHONPATH}}"; }

# inside::find_python MODULE... - sets KIT_PYTHON to the first Python on PATH that has one of them, and KIT_HAS to that
# one. Else to the first Python: whether the program can do without is for its launcher to say.
inside::find_python() {
  local -a kit_folders
  local kit_folder kit_name kit_python
  KIT_PYTHON='' KIT_HAS=''
  IFS=: read -ra kit_folders <<<"${PATH}"
  for kit_name in python3 python; do
    for kit_folder in "${kit_folders[@]}"; do
      kit_python="${kit_folder}/${kit_name}"
      [[ -x "${kit_python}" && ! -d "${kit_python}" ]] || continue
      KIT_PYTHON="${KIT_PYTHON:-${kit_python}}"
      for KIT_HAS in "$@"; do
        if inside::has_module "${kit_python}" "${KIT_HAS}"; then
          KIT_PYTHON="${kit_python}"
          return
        fi
      done
    done
  done
  KIT_HAS=''
}

# inside::has_module PYTHON MODULE - a look beside it is enough for most; starting a Python takes longer, the more so from
# a cold image.
inside::has_module() {
  inside::has_file "$@" ||
    "$1" -c 'import importlib.util as u, sys; sys.exit(u.find_spec(sys.argv[1]) is None)' "$2" 2>/dev/null
}

# inside::has_file PYTHON FILE - among the packages beside it.
inside::has_file() {
  local -r kit_prefix="${1%/*}/.."
  compgen -G "${kit_prefix}/lib/python3*/*-packages/$2" >/dev/null || compgen -G "${kit_prefix}/local/lib/python3*/*-packages/$2" >/dev/null
}

# inside::choose_program MODULE... - sets KIT_PROGRAM: a Python program as its own line in a shell would start it, with the
# first Python that has one of the modules, unless one was found before; anything else as it is, and no Python is looked for.
inside::choose_program() {
  KIT_PROGRAM=("${KIT_COMMAND[@]}")
  case "${KIT_PROGRAM[0]}" in
    *.py | python | python3) ;;
    *) return ;;
  esac
  [[ -n "${KIT_PYTHON:-}" ]] || inside::find_python "$@"
  [[ -n "${KIT_PYTHON}" ]] ||
    inside::die "there is no Python here (looked for python3 and python in ${PATH})" "choose an image that has it"
  case "${KIT_PROGRAM[0]}" in
    *.py) KIT_PROGRAM=("${KIT_PYTHON}" -u "${KIT_PROGRAM[@]}") ;;
    *) KIT_PROGRAM[0]="${KIT_PYTHON}" ;;
  esac
}

# rank.sh - how launchers start a rank: with a log of its own, and with a note of its exit code, which torchrun would
# turn into 1, and of which srun would report the largest.

# peers.sh - whether the ranks ever met: programs that each believe to be alone end as well as ranks that train together. It looks
# at the sockets of a rank's processes and needs nothing of the program. What it finds is worth a warning, and no more.

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

peers::note() { stamp::write "${KIT_STAMPS}" "met ${RANK}"; }

# peers::are_met PROCESS - whether it, or one that it started, has a TCP connection within this machine or to the master's, but not
# to another of its own. Under `spawn` its own processes are the ranks.
peers::are_met() {
  local -a kit_processes=("$1") kit_children kit_files=()
  local -A kit_own=() kit_ends=()
  local -i kit_i
  local kit_file kit_line kit_here kit_there kit_state kit_inode kit_master=''
  local -r kit_socket='/fd/[0-9]+ -> socket:.([0-9]+)' kit_mapped=0000000000000000FFFF0000 # IPv4 in IPv6
  for ((kit_i = 0; kit_i < ${#kit_processes[@]}; kit_i++)); do
    for kit_file in "/proc/${kit_processes[kit_i]}"/task/*/children; do
      kit_children=()
      { read -ra kit_children <"${kit_file}"; } 2>/dev/null || true # it has no newline, or is gone
      kit_processes+=("${kit_children[@]}")
    done
  done
  for kit_line in "${kit_processes[@]}"; do kit_files+=("/proc/${kit_line}"/fd/*); done
  while IFS= read -r kit_line; do
    [[ ! "${kit_line}" =~ ${kit_socket} ]] || kit_own[${BASH_REMATCH[1]}]=yes
  done < <(ls -l "${kit_files[@]}" 2>/dev/null)
  while read -r _ kit_here kit_there kit_state _ _ _ _ _ kit_inode _; do
    [[ "${kit_state}" == 01 && -n "${kit_own[${kit_inode}]:-}" ]] || continue
    kit_ends["${kit_here#"${kit_mapped}"} ${kit_there#"${kit_mapped}"}"]=yes
  done < <(peers::connections 1)
  # The kernel shows an address's bytes in the machine's order.
  [[ ! "${MASTER_ADDR:-}" =~ ^([0-9]+)[.]([0-9]+)[.]([0-9]+)[.]([0-9]+)$ || "${MASTER_ADDR}" == 127.* ]] ||
    printf -v kit_master '%02X%02X%02X%02X' "${BASH_REMATCH[4]}" "${BASH_REMATCH[3]}" "${BASH_REMATCH[2]}" "${BASH_REMATCH[1]}"
  for kit_line in "${!kit_ends[@]}"; do
    kit_here="${kit_line% *}" kit_there="${kit_line#* }"
    if [[ -n "${kit_ends["${kit_there} ${kit_here}"]:-}" ]]; then
      [[ "${KIT_LAUNCHER:-}" != spawn ]] || return 0
    elif [[ "${kit_there%:*}" == "${kit_here%:*}" || "${kit_there%:*}" == "${kit_master}" ]]; then
      return 0
    fi
  done
  return 1
}

# peers::connections STATES - the lines of the kernel's tables; 1 is established, A listens, and the others are closing.
peers::connections() { grep -hE " 0$1 " /proc/net/tcp /proc/net/tcp6 2>/dev/null || true; }

# peers::have_parted - whether a connection between ranks has just ended, which a look once a second may have missed: one with the
# master's port; under `spawn`, where programs choose a port themselves, one within this machine to a port that nobody listens on
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
        [[ "${kit_here##*:}" != "${kit_port}" && "${kit_there##*:}" != "${kit_port}" ]] || return 0
        # shellcheck disable=SC2154  # rank.sh sets kit_before
        if [[ "${KIT_LAUNCHER:-}" == spawn && "${kit_here%:*}" == "${kit_there%:*}" && "${kit_before}" != *"${kit_here} ${kit_there} "* ]]; then
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
# the others, as its text or its log says.
peers::judge() {
  ! peers::have_parted || peers::note
  ((RANK == 0)) || return 0
  local -a kit_files=()
  local kit_word kit_found
  for kit_word; do
    [[ ! -f "${kit_word}" || "${kit_word}" != *.@(py|sh|bash) ]] || kit_files+=("${kit_word}")
    kit_word="${kit_word//.//}"
    [[ ! -f "${kit_word}.py" ]] || kit_files+=("${kit_word}.py") # of python -m
    [[ ! -f "${kit_word}/__main__.py" ]] || kit_files+=("${kit_word}/__main__.py")
  done
  kit_found="$({
    grep -ohE 'lightning|accelerate|deepspeed|torch\.distributed|init_process_group|DistributedDataParallel' -- "${kit_files[@]}" /dev/null
    head -c 100000 -- "${KIT_LOG_DIR}/rank${RANK}.out" | grep -oE '[Ll]ightning'
  } 2>/dev/null || true)"
  for kit_word in ightning:lightning accelerate deepspeed torch.distributed init_process_group:torch.distributed DistributedDataParallel:torch.distributed; do
    [[ "${kit_found}" != *"${kit_word%:*}"* ]] || { stamp::write "${KIT_STAMPS}" "shares ${kit_word#*:}" && return; }
  done
}

# rank::run PROGRAM... - RANK and LOCAL_RANK are set; KIT_SIGNALED is "group" where signals come to the program by
# themselves, as torchrun sends them; KIT_LOGGED is "node" where it is the node's one program. Ends this shell with the program's exit code.
rank::run() {
  local -r kit_file="${KIT_LOG_DIR}/rank${RANK}" kit_path="${PATH}"
  PATH="${KIT_PATH:-${PATH}}"
  rm -f -- "${kit_file}.failed" # of an attempt before torchrun's restart
  # The log of an attempt before, when Slurm started the job again, is kept.
  ((${SLURM_RESTART_COUNT:-0} == 0)) || printf 'kit: %s: attempt %d\n' "${SLURMD_NODENAME:-${HOSTNAME}}" "$((SLURM_RESTART_COUNT + 1))" >>"${kit_file}.out"
  exec {kit_asking}>/dev/null {kit_watching}>/dev/null
  [[ -z "${KIT_CHECKPOINT_FILE:-}" ]] || exec {kit_asking}> >(rank::ask_for_checkpoint)
  # MPI has other ways to meet, and TensorFlow other words for it.
  local kit_has_peers='' kit_before=''
  [[ -z "${KIT_STAMPS:-}" || "${KIT_LAUNCHER:-}" == @(mpi|tensorflow) ]] || ((${WORLD_SIZE:-NNODES * NPROC_PER_NODE} == 1)) || kit_has_peers=yes
  [[ -z "${kit_has_peers}" || "${KIT_LAUNCHER:-}" != spawn ]] || kit_before="$(peers::connections '[4568]')"
  [[ -z "${kit_has_peers}" ]] || exec {kit_watching}> >(
    exec {kit_asking}>&- >/dev/null 2>&1
    peers::watch
  )
  # Both streams in one file, in order; and line by line, so that ranks do not cut into each other, to the node's log.
  exec {kit_console}>&1 > >(
    trap '' TERM INT HUP USR1 USR2 # it ends with the program's output, not with a signal to the program
    exec {kit_asking}>&- {kit_watching}>&-
    tee -a -- "${kit_file}.out" | rank::prefix "[${KIT_LOGGED:-rank}${RANK}] "
  ) 2>&1
  local -r kit_logger=$!

  rank::stamp
  local kit_stopped='' kit_code=0
  if [[ "${KIT_SIGNALED:-}" == group ]]; then
    # The program acts on it, and this shell stays to see its end.
    trap 'kit_stopped=1' TERM INT HUP
    trap : USR1 USR2
    # Its id first: a subshell becomes the program. Of a signal that kills it, this shell would write a line of its own.
    {
      (
        exec 2>&1
        rank::tell "${BASHPID}"
        rank::become "$@"
      ) || kit_code=$?
    } 2>/dev/null
  else
    rank::start_and_pass_signals_on "$@"
  fi
  # A rank that was told to stop did not cause the failure; unless what it said last is an exception: see blame.sh.
  if ((kit_code != 0)) && [[ -z "${kit_stopped}" ]]; then
    printf '%d %s %d\n' "${kit_code}" "${SLURMD_NODENAME:-${HOSTNAME}}" "${LOCAL_RANK}" >"${kit_file}.failed"
  fi
  rank::stamp_end

  exec {kit_asking}>&- {kit_watching}>&-
  # Let the last lines through; but a process that the program left behind may hold its output open for ever.
  exec >&"${kit_console}" 2>&1
  local -i kit_waited
  for ((kit_waited = 0; kit_waited < 40; kit_waited++)); do
    kill -0 "${kit_logger}" 2>/dev/null || break
    sleep 0.05
  done
  ((kit_code != 0)) || [[ -z "${kit_has_peers}" ]] || peers::judge "$@"
  # The ranks that miss this one are to say so before they are ended for it: then the one that says nothing is known.
  if ((kit_code != 0 && ${WORLD_SIZE:-1} > 1)) && [[ -z "${kit_stopped}" ]]; then sleep 1; fi
  exit "${kit_code}"
}

# rank::become PROGRAM... - the program in this shell's place, with all that the job says.
rank::become() {
  secrets::take
  PATH="${kit_path}"
  exec {kit_asking}>&- {kit_watching}>&- "$@"
}

# rank::tell PROCESS - which one the program is, to those that wait for it.
rank::tell() {
  printf '%d\n' "$1" >&"${kit_asking}"
  printf '%d\n' "$1" >&"${kit_watching}"
}

# rank::stamp - one line in the file of this node: when its task began outside the container, when it was inside, and now,
# when the program starts. The program may add a line of its own: docs/timeline.md.
rank::stamp() {
  [[ -n "${KIT_STAMPS:-}" ]] || return 0 # by hand
  stamp::now
  stamp::write "${KIT_STAMPS}" "rank ${RANK} ${KIT_BEGUN} ${KIT_ENTERED} ${KIT_NOW}"
}

# rank::stamp_end - the last line: which rank, its code, its number on the node, and when.
rank::stamp_end() {
  [[ -n "${KIT_STAMPS:-}" ]] || return 0
  stamp::now
  stamp::write "${KIT_STAMPS}" "ended ${RANK} ${kit_code} ${LOCAL_RANK} ${KIT_NOW}"
}

# rank::start_and_pass_signals_on PROGRAM... - Slurm signals the first process of a task alone, which is this shell. Sets
# kit_stopped and kit_code.
rank::start_and_pass_signals_on() {
  local kit_number kit_answer kit_passed=''
  set -m # a group of its own: without, bash would have the program ignore SIGINT
  (rank::become "$@") &
  local -r kit_program=$!
  set +m
  rank::tell "${kit_program}"
  for kit_number in TERM INT HUP; do
    # shellcheck disable=SC2064  # the number is meant now, not when the signal comes
    trap "kit_stopped=1 kit_passed=1; kill -${kit_number} ${kit_program} 2>/dev/null || true" "${kit_number}"
  done
  for kit_number in USR1 USR2; do
    # shellcheck disable=SC2064  # likewise
    trap "kit_passed=1; kill -${kit_number} ${kit_program} 2>/dev/null || true" "${kit_number}"
  done
  {
    wait "${kit_program}" || kit_code=$?
    while [[ -n "${kit_passed}" ]]; do # it was the signal that ended the waiting
      kit_passed='' kit_answer=0
      wait "${kit_program}" || kit_answer=$?
      ((kit_answer == 127)) || kit_code="${kit_answer}" # 127: the program's end was known already
    done
  } 2>/dev/null # of a signal that killed the program, bash would write a line of its own
}

# rank::ask_for_checkpoint - reads the program's process id, and sends it SIGUSR1 when the batch part wants a checkpoint, as a
# file says. It looks every other second, without starting a process, until the rank closes its input.
rank::ask_for_checkpoint() {
  trap '' TERM INT HUP USR1 USR2
  local kit_program kit_answer
  read -r kit_program || return 0
  while :; do
    kit_answer=0
    read -r -t 2 _ || kit_answer=$?
    ((kit_answer > 128)) || return 0
    [[ -e "${KIT_CHECKPOINT_FILE}" ]] || continue
    kill -USR1 "${kit_program}" 2>/dev/null || true
    return 0
  done
}

# sed -u would read byte by byte; stdbuf, where there is one, makes only its output go line by line.
rank::prefix() {
  local -a kit_sed=(sed -u)
  ! command -v stdbuf >/dev/null || kit_sed=(stdbuf -oL sed)
  exec "${kit_sed[@]}" "s/^/$1/"
}

# Names here begin with kit_: a job's variable of the same name would not reach the program, since `local` hides it.

launcher::main() {
  inside::begin "${BASH_SOURCE[0]}" "$@"
  inside::find_python torch
  [[ -n "${KIT_HAS}" ]] ||
    inside::die "no Python here has torch (looked for python3 and python in ${PATH})" \
      "choose an image that has it, or activate the environment that has it before submitting"
  inside::choose_program torch
  [[ -d "${KIT_LOG_DIR}/.torchrun" ]] || mkdir -p -- "${KIT_LOG_DIR}/.torchrun"
  launcher::choose_rendezvous
  launcher::choose_binding

  # torchrun reads its program's arguments as templates, for ${local_rank}, and would make $ of every $$.
  set -- "${KIT_PYTHON}" -m torch.distributed.run \
    "${KIT_RENDEZVOUS[@]}" --nproc-per-node "${NPROC_PER_NODE}" --rdzv-id "${KIT_RENDEZVOUS_ID:-0}" \
    --max-restarts "${KIT_MAX_RESTARTS}" "${KIT_BINDING[@]}" --log-dir "${KIT_LOG_DIR}/.torchrun" \
    --no-python "${BASH}" "${KIT_RUN_DIR//\$/\$\$}/torchrun.sh" --rank "${PWD//\$/\$\$}" "${KIT_PROGRAM[@]//\$/\$\$}"
  # Last, so that neither the image nor the lines above win over the job's own variables.
  inside::job_env
  exec "$@"
}

# launcher::choose_rendezvous - never --standalone, with which every node would form a world of its own.
launcher::choose_rendezvous() {
  if ((KIT_MAX_RESTARTS == 0)); then
    # Static: ranks follow the node ranks, and a port in use ends the job at once.
    KIT_RENDEZVOUS=(--nnodes "${NNODES}" --node-rank "${NODE_RANK}" --master-addr "${MASTER_ADDR}" --master-port "${MASTER_PORT}")
    return
  fi
  # c10d: nodes meet again after a failure. Node rank 0 keeps the store and is told so, for
  # torchrun would look for its own host name in the address; and each node's address, for the name may not resolve.
  local -a kit_own
  local kit_is_host=false
  [[ "${NODE_RANK}" != 0 ]] || kit_is_host=true
  mapfile -t -s "${NODE_RANK}" -n 1 kit_own <"${KIT_ADDRESSES}"
  # torch would keep the store of the ranks over restarts, where they find the addresses of those that are gone: Gloo ends in
  # "connectFullMesh failed" (https://github.com/pytorch/pytorch/issues/135712; so with 2.13). So each round gets its own.
  export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
  KIT_RENDEZVOUS=(
    --nnodes "${NNODES}" # all that were allocated: a range would have torchrun begin with a few when the others are late
    --rdzv-backend c10d
    --rdzv-endpoint "${MASTER_ADDR}:${MASTER_PORT}"
    --rdzv-conf "is_host=${kit_is_host}"
    --local-addr "${kit_own[0]}"
  )
}

# launcher::choose_binding - sets KIT_BINDING. torchrun can start each rank on the CPUs beside its GPU, and ends where it cannot:
# without numactl, without a GPU for each rank, or with a GPU beside which the job has no CPU. See docs/affinity.md.
launcher::choose_binding() {
  local kit_cpus
  KIT_BINDING=()
  [[ -e /sys/devices/system/node/node1 && -e /dev/nvidiactl ]] && command -v numactl >/dev/null || return 0
  ((KIT_GPUS_PER_NODE >= NPROC_PER_NODE)) || return 0
  kit_cpus="$(getconf _NPROCESSORS_ONLN 2>/dev/null)" || return 0
  [[ "$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)" == "${kit_cpus}" ]] || return 0
  # torch 2.9 brought it.
  ! inside::has_file "${KIT_PYTHON}" torch/numa/binding.py || KIT_BINDING=(--numa-binding node)
}

if [[ "${1:-}" == --rank ]]; then
  KIT_SIGNALED=group
  cd -- "$2" # the user's start-up file (BASH_ENV) may have gone elsewhere
  rank::run "${@:3}"
else
  launcher::main "$@"
fi
