# shellcheck shell=bash
# login.sh - what kit does on a login node. It sends this file over ssh to `bash -s`, and behind it one line in braces that calls
# login::main: bash reads a script as it comes, so one that is cut off on its way only defines functions. Nothing is installed.
set -uo pipefail +o posix
umask 077

# shellcheck source=remove.sh
source "${KIT_SCRIPTS}/remove.sh"

# login::main MARK INPUT FUNCTION ARG... - the function's output and its exit status between two marks: what a site's start-up
# files print comes before the first, and without the second the connection was cut.
login::main() {
  local -r mark="$1" input="$2"
  local status=0
  shift 2
  type -P sbatch >/dev/null || login::profile
  printf '%s\n' "${mark}"
  "$@" < <(printf '%s' "${input}") || status=$?
  printf '\n%s %d\n' "${mark}" "${status}"
}

# At some sites only the start-up file of login shells, which this is not, puts Slurm on PATH.
login::profile() {
  set +u
  # shellcheck disable=SC1091  # the site's own
  source /etc/profile </dev/null >/dev/null 2>&1 || true
  set -u
}

# login::run COMMAND ARG...
login::run() {
  "$@"
}

# login::slurm COMMAND ARG... - without the variables of a job that this may run in, which sbatch would pass on.
login::slurm() {
  local name
  for name in "${!SLURM_@}" "${!SLURMD_@}"; do
    case "${name}" in
      SLURM_CONF | SLURM_CLUSTERS | SLURM_JWT | SLURM_TIME_FORMAT) ;;
      *) unset "${name}" ;;
    esac
  done
  "$@"
}

# login::look FOLDER BAD_NODES PATH... - a line for each fact: where kit's folder is, which tools there are, what is at these
# paths; and the notes of nodes that could not work.
login::look() {
  local -r folder="$(login::absolute "$1")" bad_nodes="$2"
  local name path
  local -i index=0
  shift 2
  if ! login::may_own "${folder}"; then
    printf 'foreign %s\n' "${folder}"
    return
  fi
  printf 'folder %s\nhome %s\nuser %s\n' "${folder}" "${HOME}" "$(id -un)"
  for name in sbatch rsync flock sha256sum enroot apptainer; do
    type -P "${name}" >/dev/null && printf 'tool %s\n' "${name}"
  done
  if [[ "$(srun --help 2>/dev/null)" == *--container-image* ]]; then printf 'tool pyxis\n'; fi
  for path in "$@"; do
    [[ "${path}" == /* ]] || path="${folder}/${path}"
    if [[ -d "${path}" ]]; then
      printf 'folder-at %d\n' "${index}"
    elif [[ -e "${path}" ]]; then
      printf 'file-at %d %d\n' "${index}" "$(stat --dereference --format=%s -- "${path}")"
      [[ "${path}" != "${folder}"/images/*.json || ! -f "${path}" ]] || login::record "${path}"
    fi
    index+=1
  done
  if [[ -f "${folder}/bad-nodes/${bad_nodes}" && -r "${folder}/bad-nodes/${bad_nodes}" ]]; then
    sed 's/^/bad /' -- "${folder}/bad-nodes/${bad_nodes}"
  fi
}

# login::kept FOLDER [TARGET NAME]... - of files (TARGET is empty) and links that are to be put into a folder, which the user may
# have put things into: the number of each whose place a link of his own has, or is behind; or, of a link, anything else.
login::kept() {
  local -r folder="$1"
  local target path
  local -i index=0
  shift
  for (( ; $# > 0; index++)); do
    target="$1" path="${folder}/$2"
    shift 2
    if [[ -n "${target}" && -L "${path}" && "$(readlink -n -- "${path}")" == "${target}" ]]; then continue; fi
    if [[ -L "${path}" || (-n "${target}" && -e "${path}") ]]; then printf '%d\n' "${index}" && continue; fi
    while [[ "${path%/*}" != "${folder}" ]]; do
      path="${path%/*}"
      if [[ -L "${path}" ]]; then printf '%d\n' "${index}" && break; fi
    done
  done
}

# What kit build wrote of an image: its file, and the sha256 of that.
login::record() {
  sed -n 's/^  "\(file\|sha256\)": "\([^"\\]*\)",\{0,1\}$/record-\1 \2/p' -- "$1"
}

# ---------------------------------------------------------------- what is kit's

# A file of this name marks what kit made on a login node: its folder, and the copies of kit, builds, calls and run
# directories in it. In a run directory it holds the token of the submission that made it.
readonly login_mark=.made-by-kit

# login::may_own FOLDER - whether the folder is kit's, or can become it: it has the mark, is empty, or is not there.
login::may_own() {
  local -r folder="$1"
  if [[ "${folder}" -ef / || "${folder}" -ef "${HOME}" || "/${folder}/" == */../* ]]; then
    return 1
  fi
  # The mark is looked for once more at the end: another call may just have made the folder.
  [[ ! -e "${folder}" || -f "${folder}/${login_mark}" ]] || login::is_empty "${folder}" || [[ -f "${folder}/${login_mark}" ]]
}

# login::is_empty FOLDER - which may be a link. What cannot be read is not empty.
login::is_empty() {
  local inside
  [[ -d "$1" ]] && inside="$(find -H "$1" -mindepth 1 -print -quit 2>/dev/null)" && [[ -z "${inside}" ]]
}

# login::own FOLDER - makes kit's folder and prints `folder PATH`; prints `foreign PATH` where it is somebody else's.
login::own() {
  local -r folder="$(login::absolute "$1")"
  if ! login::may_own "${folder}"; then
    printf 'foreign %s\n' "${folder}"
    return
  fi
  mkdir -p -- "${folder}" && : >>"${folder}/${login_mark}" || return
  printf 'folder %s\n' "${folder}"
}

# login::make_marked TREE [FOLDER...] - makes a tree that kit may remove again, and folders in it. Fails where something
# else is there.
login::make_marked() {
  local -r tree="$1"
  if [[ ! -f "${tree}/${login_mark}" ]]; then
    mkdir -p -- "${tree%/*}" && mkdir -- "${tree}" && : >"${tree}/${login_mark}" || return
  fi
  mkdir -p -- "$@"
}

# login::make_run FOLDER RUN_DIR TOKEN OTHER... - makes a run directory in kit's folder, and other folders, and prints
# `made`; or `taken` where a folder is there that another submission made; or `foreign PATH` as login::own.
login::make_run() {
  local -r run_dir="$2" token="$3"
  if ! login::may_own "$(login::absolute "$1")"; then
    login::own "$1"
    return
  fi
  login::own "$1" >/dev/null && mkdir -p -- "${run_dir%/*}" || return
  if mkdir -- "${run_dir}" 2>/dev/null; then
    printf '%s\n' "${token}" >"${run_dir}/${login_mark}" || return
  elif ! login::has_token "${run_dir}" "${token}"; then
    printf 'taken\n'
    return
  fi
  mkdir -p -- "${run_dir}/log" "${@:4}" && printf 'made\n'
}

login::has_token() {
  local -r run_dir="$1" token="$2"
  [[ -n "${token}" && -f "${run_dir}/${login_mark}" && "$(<"${run_dir}/${login_mark}")" == "${token}" ]]
}

# login::remove TREE... - removes trees that kit made. Whatever lacks the mark stays.
login::remove() {
  local tree
  for tree in "$@"; do
    [[ ! -f "${tree}/${login_mark}" || -L "${tree}/${login_mark}" ]] || remove::tree "${tree}" '.+' || true
  done
}

# login::absolute FOLDER - a relative one is in the home.
login::absolute() {
  case "$1" in
    /*) printf '%s' "$1" ;;
    *) printf '%s/%s' "${HOME%/}" "${1#\~/}" ;;
  esac
}

# login::make FOLDER... - readable by their owner alone, as everything that is made here.
login::make() {
  mkdir -p -- "$@"
}

# login::place FILE NEW_NAME SHA256 - gives an image that has come whole its name.
login::place() {
  local found
  found="$(sha256sum -- "$1")" || return 1
  found="${found#\\}" # before a name with a backslash
  if [[ "${found%% *}" != "$3" ]]; then
    rm -f -- "$1"
    printf 'different\n'
    return
  fi
  mv -T -- "$1" "$2" || return
  printf 'placed\n'
}

# ---------------------------------------------------------------- submitting, exactly once

# login::submit RUN_DIR TOKEN OPTION... - says `job ID`, also of a job that an earlier call submitted; `refused` where Slurm does not
# take it; `unsure` where Slurm has not answered; `busy` where another call is at it; `given-up` where nobody shall submit it.
login::submit() {
  local -r run_dir="$1" token="$2"
  shift 2
  cd -- "${run_dir}" || return
  # What has begun is finished, whether anybody still listens or not.
  trap '' HUP PIPE
  login::lock || { printf 'busy\n' && return; }
  login::known && return
  if [[ -e given-up ]]; then
    printf 'given-up\n'
    return
  fi
  # Before sbatch, so that whoever comes next knows that there may be a job.
  printf '%s %d\n' "${HOSTNAME}" "$(date +%s)" >submitting
  local -i status=0
  login::slurm sbatch --parsable "$@" run_script.sh >submitting.out 2>submitting.err </dev/null || status=$?
  cat -- submitting.err >&2
  local -r job="$(login::answered)"
  local refused=''
  if ((status == 1)) && login::is_refusal; then refused=yes; fi
  if [[ -n "${job}" && -z "${refused}" ]]; then
    login::note "${job}"
  elif [[ -z "${job}" && -n "${refused}" ]]; then
    login::give_up "${token}"
    printf 'refused\n'
  # Whatever else it ended with, Slurm may have the job, and shows it at once.
  elif login::known; then
    return
  elif [[ -z "${job}" ]] && ((status > 0 && status <= 128)) && ! grep -qiE "${login_broken}" submitting.err; then
    login::give_up "${token}"
    printf 'refused\n'
  else
    printf 'unsure\n'
  fi
}

# login::answered - the job that sbatch names, as ID or ID;CLUSTER; nothing where it names none, or several. A site's wrapper may
# print lines around it, or swallow --parsable.
login::answered() {
  local line id found=''
  local -r pattern='^(Submitted batch job )?([0-9]{1,18})(( on cluster |;)([[:alnum:]_.-]+))?[[:space:]]*$'
  while IFS='' read -r line; do
    [[ "${line}" =~ ${pattern} ]] || continue
    id="${BASH_REMATCH[2]}${BASH_REMATCH[3]:+;${BASH_REMATCH[5]}}"
    [[ -z "${found}" || "${found}" == "${id}" ]] || return 0
    found="${id}"
  done < <(tr -d '\0' <submitting.out)
  printf '%s' "${found}"
}

# What tells that sbatch was cut off from slurmctld, or was not understood by kit: the job may have been taken.
readonly login_broken='timed out|time-out|Unable to contact|Batch job submission failed|connection|communication|zero bytes|broken pipe'
# The reasons that slurmctld, or sbatch before it asks, gives for not taking a job: launch/kit/slurm/jobs.py has them, too.
readonly login_refusal='(Invalid|Requested|Access|Job violates|Job dependency|Job script|Node count|More processors|Memory (required|specification)|Unable to allocate|User.s group|No partition|Required|Batch script contains|Pathname|Burst Buffer|Unspecified error|Unable to open file|unrecognized option|Association|QOS)'

login::is_refusal() {
  if grep -q 'Batch job submission failed: ' submitting.err; then
    grep 'Batch job submission failed: ' submitting.err | tail -n 1 | grep -qiE "Batch job submission failed: ${login_refusal}"
  else
    grep -qiE "^sbatch: (error: )?${login_refusal}" submitting.err
  fi
}

# login::give_up TOKEN - nobody will submit what is here. What kit wrote is removed where the submission of this token made
# it; what the user has put beside it stays.
login::give_up() {
  local launcher name
  : >given-up
  login::has_token . "$1" || return 0
  launcher="$(sed -n 's/^KIT_LAUNCHER=\([a-z0-9_-]*\)$/\1/p' env.sh 2>/dev/null)"
  for name in .secrets code run.json env.sh run_script.sh "${launcher:-run_script}.sh" module.py submitting submitting.out submitting.err; do
    [[ ! -e "${name}" ]] || remove::tree "${name}" '.+'
  done
  rmdir -- log 2>/dev/null || true
}

# login::find RUN_DIR [give-up TOKEN] - `job ID`, `unsure`, `busy`, or `nothing`: then it was not submitted. With give-up,
# nobody will, and all that was copied for it is removed.
login::find() {
  local -r give_up="${2:-}" token="${3:-}"
  cd -- "$1" 2>/dev/null || { printf 'nothing\n' && return; }
  trap '' HUP PIPE
  login::lock || { printf 'busy\n' && return; }
  login::known && return
  [[ -z "${give_up}" ]] || login::give_up "${token}"
  printf 'nothing\n'
}

# login::forget RUN_DIR TASK - removes the values of the job's secrets; those of one task of an array where it is named.
login::forget() {
  if [[ -n "${2:-}" ]]; then
    rm -f -- "$1/.secrets/$2"
  else
    remove::tree "$1/.secrets" '\.secrets'
  fi
}

# Holds what follows against another call for this run directory; released when this process ends, however it ends.
login::lock() {
  local -i status=0
  exec {login_lock}>>.lock
  flock --timeout 40 --conflict-exit-code 75 "${login_lock}" || status=$?
  # On a file system without locks the note `submitting` has to do.
  ((status != 75))
}

# login::known - says what is known of a job for this folder; false where there is none, and none can be on its way.
login::known() {
  local job_id host begun
  if [[ -s job_id ]]; then
    printf 'job %s\n' "$(<job_id)"
    return
  fi
  job_id="$(login::first < <(compgen -G 'log/slurm-*.out'))"
  if [[ -n "${job_id}" ]]; then
    login::note "${job_id}"
    return
  fi
  [[ -e submitting ]] || return 1
  read -r host begun <submitting || begun=0
  # sbatch was started, and nobody heard its answer. Slurm knows.
  local queue
  if ! queue="$(login::slurm squeue --me --noheader --states=all --format='%F|%Z' 2>/dev/null </dev/null)"; then
    printf 'unsure\n'
    return
  fi
  job_id="$(login::of_here <<<"${queue}")"
  if [[ -z "${job_id}" ]] && type -P sacct >/dev/null; then
    job_id="$(login::of_here < <(login::slurm sacct --allocations --noheader --parsable2 --format=JobIDRaw,WorkDir --starttime=now-7days 2>/dev/null </dev/null))"
  fi
  if [[ -n "${job_id}" ]]; then
    login::note "${job_id}"
    return
  fi
  # On another login node, where a lock may not reach, sbatch may still be waiting for its answer.
  if [[ "${host}" != "${HOSTNAME}" ]] && (($(date +%s) - ${begun:-0} < 180)); then
    printf 'busy\n'
    return
  fi
  return 1
}

# The first job that works in this folder: lines of ID|FOLDER.
login::of_here() {
  local id folder
  while IFS='|' read -r id folder; do
    [[ ! "${folder}" -ef . ]] || printf 'log/slurm-%s.out\n' "${id}"
  done | login::first
}

# The smallest job id of names like log/slurm-12.out or log/slurm-12_3.out: later ones went on for it.
login::first() {
  sed -n 's|^log/slurm-\([0-9][0-9]*\).*|\1|p' | sort -n | head -n 1
}

login::note() {
  printf '%s\n' "$1" >job_id.new
  mv -T -- job_id.new job_id
  printf 'job %s\n' "$1"
}
