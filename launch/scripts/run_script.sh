#!/usr/bin/env bash
# run_script.sh - what the job does, on its first node: it finds the nodes, has each of them prepared, starts the ranks, and
# says how they ended. srun starts it again on every node: as "run_script.sh prepare", and then as "run_script.sh start".
#
# Every value comes from env.sh, and every function from the file of lib/ that is named after its subject. Read on in the
# launcher's script beside this one, and then in your program. To submit by hand: sbatch run_script.sh
set -euo pipefail +o posix +o noclobber && shopt -u failglob # which BASH_ENV or POSIXLY_CORRECT may have set: a POSIX shell knows no names with ::

# A signal may come before ending::listen listens: these note it, and lib/own_lines.sh, while it runs the lines of host_setup.
# shellcheck disable=SC2034  # lib/ending.sh reads them
[[ "${KIT_HOST_IS_SET_UP:-}" == yes ]] || KIT_SIGNAL='' KIT_NEAR_END=''
[[ "${1:-batch}" != @(batch|again) ]] || { trap 'KIT_SIGNAL=TERM' TERM && trap 'KIT_NEAR_END=yes' USR1; }

# sbatch runs a copy of this script in a folder of its own; the #SBATCH line --chdir above puts the job here. By hand it may start anywhere.
KIT_RUN_DIR="${BASH_SOURCE[0]%/*}"
[[ -r "${KIT_RUN_DIR}/env.sh" ]] || KIT_RUN_DIR="${PWD}"
[[ "${KIT_RUN_DIR}" == /* ]] || KIT_RUN_DIR="$(CDPATH='' cd -- "${KIT_RUN_DIR}" && pwd)"
declare -rx KIT_RUN_DIR
cd -- "${KIT_RUN_DIR}" # the user's start-up file (BASH_ENV) may have gone elsewhere
if [[ ! -r "${KIT_RUN_DIR}/env.sh" ]]; then
  printf 'kit: error: %s: no env.sh in %s\n  fix: %s\n' "${SLURMD_NODENAME:-${HOSTNAME}}" "${KIT_RUN_DIR}" \
    "the run directory must be on a file system that every node sees; if it was moved: sbatch --chdir=NEW_PLACE run_script.sh${BASH_ENV:+; BASH_ENV (${BASH_ENV}) must not change the folder}" >&2
  exit 1
fi
source "${KIT_RUN_DIR}/lib/environment.sh"
# The program of another job may have started this. When host_setup has run, it has been forgotten already.
[[ "${1:-batch}" != @(batch|attach|shell|jupyter) || -n "${KIT_HOST_IS_SET_UP:-}" && -e host_setup.sh ]] || environment::forget_other_job
environment::choose_cluster "${1:-batch}"
# shellcheck source=/dev/null
source "${KIT_RUN_DIR}/env.sh"

source "${KIT_RUN_DIR}/lib/messages.sh"
source "${KIT_RUN_DIR}/lib/events.sh"
source "${KIT_RUN_DIR}/lib/node.sh"
# shellcheck source=runtimes/none.sh
source "${KIT_RUN_DIR}/lib/runtimes/${KIT_RUNTIME}.sh"
# shellcheck source=stages/none.sh disable=SC2153 # KIT_STAGE is in env.sh
source "${KIT_RUN_DIR}/lib/stages/${KIT_STAGE}.sh"
[[ -z "${KIT_IMAGE}" ]] || source "${KIT_RUN_DIR}/lib/image.sh"
[[ -z "${KIT_CACHE:-}" ]] || source "${KIT_RUN_DIR}/lib/cache.sh"
[[ -z "${KIT_SECRETS:-}" ]] || source "${KIT_RUN_DIR}/lib/secrets.sh"
[[ -z "${KIT_SHARE:-}" ]] || source "${KIT_RUN_DIR}/lib/share.sh"
# shellcheck disable=SC2153 # KIT_SPARES is in env.sh
((KIT_SPARES == 0)) || source "${KIT_RUN_DIR}/lib/spares.sh"

# job::main [shell|jupyter NODE...] - on the first node, once. `kit shell` wants something else than the ranks.
# shellcheck disable=SC2120 # shell.sh passes them
job::main() {
  source "${KIT_RUN_DIR}/lib/job.sh"
  environment::forget_shell
  job::begin
  kit::if_there host_setup::conclude

  ((KIT_SPARES == 0)) || spares::choose
  job::choose_master "$#"
  [[ -z "${KIT_IMAGE}" ]] || image::identify
  kit::say "job ${KIT_ID} on ${SLURM_JOB_NODELIST}: ${NNODES} x ${NPROC_PER_NODE} processes," \
    "runtime ${KIT_RUNTIME}, master $(net::endpoint "${MASTER_ADDR}" "${MASTER_PORT}")"

  preempt::begin
  step::choose_options
  event::note nodes_chosen nodes "${KIT_HOSTS}"
  stage::distribute
  event::note preparing
  ready::wait_for_nodes
  kit::if_there runtime::agree
  job::note_facts
  (($# == 0)) || shell::start "$@"

  stage::use
  ranks::run
  ranks::check_ends
  kit::if_there peers::warn
  kit::say "all ranks ended well"
}

# node::prepare - on every node: all that its ranks need; then tells the first node that it is ready.
node::prepare() {
  local answer begun staged
  exec {answer}>&1 >&2 # what tools print is for the log
  event::now
  begun="${KIT_NOW}"
  [[ -z "${KIT_HEALTH:-}" ]] || health::check
  node::bring_mounts
  [[ "${SLURM_NODEID}" != 0 || -n "${KIT_LOOPBACK:-}" ]] || interface::check_master
  stage::prepare
  event::now
  staged="${KIT_NOW}"
  node::bring_container
  event::line node_ready begun "${begun}" staged "${staged}" ${KIT_IN_PLACE:+mounted yes} ${KIT_CACHE_LACKS:+cache no} machine "${KIT_MACHINE}"
  printf '%s\n' "${KIT_LINE}" >&"${answer}"
}

# node::start - on every node, when all are ready: becomes the launcher's script, in the container.
node::start() {
  event::now
  export KIT_BEGUN="${KIT_NOW}"
  # srun expands nothing here: SLURM_NODEID is this step's, while on the first node it is always 0.
  export NODE_RANK="${SLURM_NODEID}" NNODES="${SLURM_NNODES}"
  stage::use
  node::collect_facts
  # exec all the way down: Slurm signals only the step's first process.
  runtime::exec bash "${KIT_RUN_DIR}/${KIT_LAUNCHER}.sh" "${KIT_NODE_FACTS[@]}"
}

if [[ -e "${KIT_RUN_DIR}/host_setup.sh" ]]; then
  source "${KIT_RUN_DIR}/lib/host_setup.sh"
  host_setup::run "$@"
fi

case "${1:-batch}" in
  batch) job::main ;;
  again) KIT_IS_AGAIN=yes KIT_RESTARTS="$2" KIT_PLACE="$3" KIT_LOST="$4" KIT_SUSPECT="$5" job::main ;; # again::start
  prepare | start)
    for fact in "${@:2}"; do export "${fact?}"; done
    node::begin
    "node::$1"
    ;;
  missing) node::begin && stage::missing ;; # with stage sbcast
  check) spares::answer "${@:2}" ;;         # with spares
  attach)                                   # kit exec, on any machine where srun is
    source "${KIT_RUN_DIR}/lib/exec.sh"
    exec::attach "${@:2}"
    ;;
  exec) # on a node, in that step
    source "${KIT_RUN_DIR}/lib/exec.sh"
    exec::become "${@:2}"
    ;;
  shell | jupyter) # kit shell
    source "${KIT_RUN_DIR}/shell.sh"
    shell::main "$@"
    ;;
  *) kit::die "unknown argument '$1'" "sbatch run_script.sh takes none" ;;
esac
