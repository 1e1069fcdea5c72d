# job.sh - the job as its first node sees it: which nodes it has, and where its ranks meet.

source "${KIT_RUN_DIR}/lib/network.sh"
source "${KIT_RUN_DIR}/lib/steps.sh"
source "${KIT_RUN_DIR}/lib/ready.sh"
source "${KIT_RUN_DIR}/lib/ranks.sh"
source "${KIT_RUN_DIR}/lib/ending.sh"
source "${KIT_RUN_DIR}/lib/blame.sh"
[[ ! -e "${KIT_RUN_DIR}/lib/peers.sh" ]] || source "${KIT_RUN_DIR}/lib/peers.sh"
[[ -z "${KIT_NEEDS_ADDRESSES}" ]] || source "${KIT_RUN_DIR}/lib/addresses.sh"
[[ -z "${KIT_MPI}" ]] || source "${KIT_RUN_DIR}/lib/mpi.sh"
[[ -n "${KIT_ELASTIC}" ]] || ((KIT_MAX_RESTARTS == 0)) || source "${KIT_RUN_DIR}/lib/restart.sh"
[[ -z "${KIT_LEAST_NODES:-}" ]] || source "${KIT_RUN_DIR}/lib/beat.sh"
[[ -z "${KIT_NOTIFY:-}" ]] || source "${KIT_RUN_DIR}/lib/notify.sh"
# shellcheck source=preempt/none.sh
source "${KIT_RUN_DIR}/lib/preempt/${KIT_ON_PREEMPT}.sh"

# job::begin - refuses what cannot work, and names the job's nodes and logs.
job::begin() {
  [[ -n "${SLURM_JOB_NODELIST:-}" ]] ||
    kit::die "not inside a Slurm job" "submit with: sbatch ${KIT_RUN_DIR}/run_script.sh (without Slurm: kit run)"
  [[ -z "${SLURM_HET_SIZE:-}" ]] ||
    kit::die "this is a heterogeneous job" "ask for nodes of one kind; torchrun needs the same number of ranks on each"
  ending::listen
  event::begin
  [[ -z "${KIT_SHARE:-}" ]] || share::begin
  KIT_LOG_FROM="$(stat -Lc %s "/proc/$$/fd/2" 2>/dev/null)" || KIT_LOG_FROM=0 # what is before it in the log is of earlier attempts
  # Of a job that a person started by hand in an allocation, Slurm knows only the folder where that was asked for.
  local allocation=''
  [[ -e "${KIT_RUN_DIR}/log/slurm-${KIT_ID}.out" ]] || allocation="${SLURM_SUBMIT_DIR:-}"
  event::note start job "${SLURM_JOB_ID}" nodes "${SLURM_JOB_NODELIST}" log "${KIT_LOG_FROM}" ${allocation:+allocation "${allocation}"}
  [[ -z "${KIT_SECRETS:-}" ]] || secrets::check
  [[ -z "${KIT_NOTIFY:-}" ]] || notify::begin
  ((KIT_ATTEMPT == 1)) || kit::say "job ${KIT_ID} on ${SLURM_JOB_NODELIST}: attempt ${KIT_ATTEMPT}"
  KIT_HOSTS="${SLURM_JOB_NODELIST}" # a host list, such as node[1-4]: bash handles 10,000 names only where each is needed
  # sbatch --nodes=N on the command line beats the #SBATCH line; what was allocated is what counts.
  NNODES="${SLURM_JOB_NUM_NODES:-${SLURM_NNODES}}"
  if [[ -n "${SLURM_GPUS:-}" ]] && ((KIT_SPARES > 0 || ${KIT_LEAST_NODES:-NNODES} < NNODES)); then
    # A step on some of the nodes would ask for the GPUs of all; one that asks for nothing, too.
    [[ -z "${SLURM_GPUS_ON_NODE:-}" ]] || export SLURM_GPUS_PER_NODE="${SLURM_GPUS_ON_NODE}"
    unset SLURM_GPUS
  fi
  [[ -z "${KIT_IS_AGAIN:-}" || -z "${KIT_LEAST_NODES:-}" || -n "${KIT_LOOPBACK:-}" ]] || lost::leave_out
}

# job::hosts - the names of the nodes that the job starts on, in Slurm's order: the first is the master.
job::hosts() { scontrol show hostnames "${KIT_HOSTS}"; }

# job::choose_master WORDS - where the ranks meet; with WORDS it is `kit shell` that starts them.
job::choose_master() {
  local -ri restart=KIT_ATTEMPT-1
  local master='' near
  read -r master < <(job::hosts) || kit::die "scontrol does not expand '${KIT_HOSTS}'" "check that slurmctld answers: scontrol ping"
  MASTER_ADDR=127.0.0.1
  # One node alone needs no network, nor do those of `kit run`, whose names some resolver may know.
  ((NNODES == 1)) || [[ -n "${KIT_LOOPBACK:-}" ]] || MASTER_ADDR="$(net::address "${master}")"
  near="${MASTER_ADDR}"
  (($1 == 0)) || near=127.0.0.1 # from a login node the way there may be closed
  MASTER_PORT="$(net::port "${SLURM_JOB_ID}" "${restart}" "${near}")"
  KIT_RENDEZVOUS_ID="${SLURM_JOB_ID}.${restart}"
  KIT_ADDRESSES='' KIT_FINGERPRINT='' KIT_MPI_TYPE=none
  [[ -z "${KIT_NEEDS_ADDRESSES}" ]] || addresses::write
  [[ -z "${KIT_MPI}" ]] || mpi::choose_type
  export NNODES MASTER_ADDR MASTER_PORT KIT_LOG_DIR KIT_RENDEZVOUS_ID KIT_ADDRESSES KIT_FINGERPRINT
}

# job::note_facts - what the tasks are told; and noted, for `kit exec`.
job::note_facts() {
  local name
  KIT_FACTS=()
  for name in NNODES MASTER_ADDR MASTER_PORT KIT_LOG_DIR KIT_ATTEMPT KIT_ATTEMPT_DIR KIT_RENDEZVOUS_ID KIT_ADDRESSES KIT_FINGERPRINT; do KIT_FACTS+=("${name}=${!name}"); done
  [[ -z "${KIT_CACHE:-}" ]] || { cache::begin && KIT_FACTS+=("KIT_CACHE=${KIT_CACHE}" "KIT_CACHE_ROOT=${KIT_CACHE_ROOT}"); }
  [[ -z "${KIT_UNPACK:-}" ]] || KIT_FACTS+=("KIT_UNPACK=${KIT_UNPACK}")
  event::note told facts "$(printf '%s\n' "${KIT_FACTS[@]}" "KIT_HOSTS=${KIT_HOSTS}")"
}
