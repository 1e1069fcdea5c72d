# steps.sh - the job's srun commands: one that starts a task on every node, and the one that starts the ranks.

# step::choose_options - sets KIT_SRUN, to which a step adds its tasks and where their output goes, and KIT_SRUN_EACH, which
# starts one task on every node, whose errors go to the node's log.
step::choose_options() {
  KIT_SRUN=(
    srun
    --nodes="${NNODES}"
    --kill-on-bad-exit=1 # one dead node must not leave the others waiting in a collective
    --wait=0             # but a node that ends well may end long before one that still writes a checkpoint
    --export=ALL         # sbatch --export=NONE is inherited otherwise
    --open-mode=append   # a requeued job keeps its id: keep the first attempt's output
  )
  # Without spares these are all of the job's nodes.
  [[ "${KIT_SPARES}${KIT_LOST:-}" == 0 ]] || KIT_SRUN+=(--nodelist="${KIT_HOSTS}")
  # The earlier step may never end, and keep its CPUs: where a node is lost, or a process of it cannot be killed.
  if [[ -n "${KIT_IS_AGAIN:-}" && -z "${KIT_LOOPBACK:-}" ]]; then
    again::wait_for_earlier
    KIT_SRUN+=(--overlap)
  fi
  KIT_BINDS="$(step::binds)"
  # Since 22.05 srun does not inherit the job's --cpus-per-task. An allocation of the user's own may be for other tasks, such as one for each
  # GPU; it is made to look like one for these, or srun warns of each step that asks for more.
  KIT_SRUN_EACH=(
    "${KIT_SRUN[@]}" --ntasks="${NNODES}" --ntasks-per-node=1
    ${KIT_BINDS:+--cpu-bind=none} --mpi=none --error="${KIT_ATTEMPT_DIR#"${KIT_RUN_DIR}"/}/%N.out"
  )
  if [[ -n "${SLURM_CPUS_PER_TASK:-}" ]]; then
    local -ri tasks="${SLURM_NTASKS_PER_NODE:-$(step::least "${SLURM_TASKS_PER_NODE:-${KIT_TASKS_PER_NODE}}")}"
    local -i cpus="SLURM_CPUS_PER_TASK * tasks" most # of a node
    export SLURM_CPUS_PER_TASK="$((cpus > KIT_TASKS_PER_NODE ? cpus / KIT_TASKS_PER_NODE : 1))" SLURM_NTASKS_PER_NODE="${KIT_TASKS_PER_NODE}"
    KIT_SRUN+=(--cpus-per-task="${SLURM_CPUS_PER_TASK}")
    # A node's one task, such as that which unpacks the image, has the CPUs of all its ranks; with --overcommit they share them.
    most="$(step::least "${SLURM_JOB_CPUS_PER_NODE:-${cpus}}")"
    ((cpus <= most)) || cpus=most
    KIT_SRUN_EACH=(env SLURM_CPUS_PER_TASK="${cpus}" "${KIT_SRUN_EACH[@]}" --cpus-per-task="${cpus}")
  fi
}

# step::least NUMBERS - prints the least of the nodes' numbers, which Slurm lists as 128(x2),64.
step::least() { printf '%s\n' "$1" | tr , '\n' | cut -d '(' -f 1 | sort -n | sed -n 1p; }

# step::binds - prints yes, unless this Slurm has nothing that binds tasks to CPUs: asked to, 22.05 says so at every step.
step::binds() {
  [[ -z "${KIT_LOOPBACK:-}" && "$(scontrol show config 2>/dev/null)" =~ TaskPlugin\ *=\ *('task/none'|'(null)') ]] || printf 'yes'
}

# step::beside HOST... - sets the caller's `step` to an srun that starts a task on each of these nodes, beside what runs there.
step::beside() {
  local binds
  binds="$(step::binds)"
  step=(
    srun --nodelist="$(IFS=, && printf '%s' "$*")" --nodes="$#" --ntasks="$#" --ntasks-per-node=1
    --overlap ${binds:+--cpu-bind=none} --mpi=none --export=ALL --kill-on-bad-exit=0 --wait=0
  )
}

# step::choose_ranks_options - sets KIT_SRUN_RANKS.
step::choose_ranks_options() {
  KIT_SRUN_RANKS=(
    "${KIT_SRUN[@]}"
    --job-name=ranks # by which again::running finds the step
    --ntasks="$((NNODES * KIT_TASKS_PER_NODE))"
    --ntasks-per-node="${KIT_TASKS_PER_NODE}"
    --distribution=block:block # ranks follow the nodes, and on a node the sockets: Slurm's default deals them out in turn
    # Where the ranks share the node's one task, binding would pin them all to its CPUs.
    ${KIT_BINDS:+--cpu-bind="${KIT_CPU_BIND}"}
    --mpi="${KIT_MPI_TYPE}" # a site's default of pmix makes srun wait for an MPI program
    --output="${KIT_ATTEMPT_DIR#"${KIT_RUN_DIR}"/}/%N.out"
  )
  # A job without --cpus-per-task, such as one with --exclusive, has all CPUs of its nodes; but a bound task would get one.
  # Slurm would start no task with more than the node with the fewest has; 0 where it does not say.
  local -i cpus
  cpus="$(step::least "${SLURM_JOB_CPUS_PER_NODE:-${SLURM_CPUS_ON_NODE:-0}}")"
  if [[ "${KIT_CPU_BIND}" != none && -z "${SLURM_CPUS_PER_TASK:-}" ]] && ((cpus > KIT_TASKS_PER_NODE)); then
    KIT_SRUN_RANKS+=(--cpus-per-task="$((cpus / KIT_TASKS_PER_NODE))")
  fi
  if declare -F runtime::srun_args >/dev/null; then # Slurm itself starts the container
    [[ -z "${KIT_CACHE:-}" ]] || cache::mount
    runtime::srun_args
    KIT_SRUN_RANKS+=("${KIT_SRUN_ARGS[@]}")
  fi
}
