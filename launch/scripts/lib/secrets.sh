# secrets.sh - the values of the job's secrets: in a file of the run directory that its owner alone can read, put there at
# submission and removed at the run's end. They are never an argument, and in no environment but that of the program, of the lines
# of `setup`, of Ray, whose workers are the program's, and of what `kit exec` and `kit shell` start in the container.
# only: KIT_SECRETS

source "${KIT_RUN_DIR}/lib/remove.sh"

# secrets::are_there - sets KIT_SECRETS_FILE; each task of an array has one of its own, to remove.
secrets::are_there() {
  KIT_SECRETS_FILE="${KIT_RUN_DIR}/.secrets/${SLURM_ARRAY_TASK_ID:-values}"
  [[ -r "${KIT_SECRETS_FILE}" ]]
}

# secrets::check - ends the job if they are missing: on the first node, before anything is started.
secrets::check() {
  secrets::are_there ||
    kit::die "the values of this run's secrets are not here (${KIT_SECRETS}): kit puts them there at submission, and a run removes them at its end" \
      "start it again with the values read anew: $(kit::start_again)"
}

# secrets::check_inside - the same in the container, before the ranks start, so that it is said once.
secrets::check_inside() {
  secrets::are_there ||
    kit::die "the values of the job's secrets cannot be read here: ${KIT_SECRETS_FILE}" \
      "the run directory must be in the container, and this user its owner; if the run has ended: kit rerun reads them anew"
}

# secrets::take - exports them, last, in the shell that becomes the program, or one of these. The file holds NAME=value entries that
# end in NUL; nothing in it is code.
secrets::take() {
  secrets::check_inside
  local - kit_pair
  set +vx # a trace of these scripts is not to show them
  # Of a locale that is not here, bash would warn for each of them.
  while IFS='' LC_ALL=C read -r -d '' kit_pair; do export "${kit_pair?}"; done <"${KIT_SECRETS_FILE}" 2>/dev/null
}

# secrets::forget [FACTS] - removes them at the end of the run, unless Slurm starts this job again, or may do so, by what it knows of the
# job: it is asked where that is not known yet.
secrets::forget() {
  [[ -z "${KIT_GOES_ON}" ]] && secrets::are_there || return 0
  local facts
  facts="${1-"$(ending::facts)"}"
  # Where Slurm does not answer, kit removes them when it sees that the job has ended.
  [[ "${facts}" == *' JobState='* ]] && ! ending::is_requeued "${facts}" || return 0
  # Preempted, and not yet back in the queue: a site may give jobs some time to end.
  [[ "${facts}" != *' Requeue=1 '* || "${facts}" != *' PreemptTime='[0-9]* ]] || return 0
  rm -f -- "${KIT_SECRETS_FILE}" || true
  # Another task of an array may need its own.
  [[ -n "$(cd -- "${KIT_RUN_DIR}/.secrets" && compgen -G '*')" ]] || remove::tree "${KIT_RUN_DIR}/.secrets" '\.secrets' || true
}
