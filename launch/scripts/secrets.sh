# shellcheck shell=bash
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

# secrets::export - into this shell, which is to become the program. The file holds NAME=value entries that end in NUL; nothing
# in it is code.
secrets::export() {
  [[ -n "${KIT_SECRETS:-}" ]] || return 0
  local -r kit_options="$-"
  local kit_pair
  set +vx # a trace of these scripts is not to show them
  secrets::find
  while IFS='' LC_ALL=C read -r -d '' kit_pair; do export "${kit_pair?}"; done <"${KIT_SECRETS_FILE}"
  unset KIT_SECRETS_FILE
  [[ "${kit_options}" != *v* ]] || set -v
  [[ "${kit_options}" != *x* ]] || set -x
}

# secrets::forget - also the folder, when no other task of an array needs it.
secrets::forget() {
  secrets::find
  rm -f -- "${KIT_SECRETS_FILE}"
  [[ -z "$(cd -- "${KIT_RUN_DIR}/.secrets" && compgen -G '*')" ]] || return 0
  rm -rf -- "${KIT_RUN_DIR}/.secrets"
}
