# packages.sh - the job's Python packages: every node unpacks them once to its own disk, and mounts them into its containers.
# only: KIT_PACKAGES

source "${KIT_RUN_DIR}/lib/kept_container.sh"
source "${KIT_RUN_DIR}/lib/scratch.sh"

# On the node's disk; the name is one of KIT_CONTAINER_PATTERN, so that `kit images gc` treats them as it does containers.
packages::place() { printf '%s/kit-%s/packages/kit-%s' "${KIT_SCRATCH:-/tmp}" "${UID}" "${KIT_PACKAGES_SHA256:0:16}"; }

# packages::choose_folder - sets KIT_PACKAGES_FOLDER, where the ranks find them. kit/plan/packages.py has the folder in a container, too.
packages::choose_folder() {
  KIT_PACKAGES_FOLDER=/opt/kit-packages
  [[ "${KIT_RUNTIME}" != none ]] || KIT_PACKAGES_FOLDER="$(packages::place)"
}

# packages::mount - adds them to what is mounted into containers.
packages::mount() { [[ "${KIT_RUNTIME}" == none ]] || KIT_MOUNTS+=("$(packages::place)" /opt/kit-packages ro); }

# packages::prepare - on a node: unpacks them unless they are there, whole.
packages::prepare() {
  local place
  place="$(packages::place)"
  scratch::make # even if they are there: somebody else may have prepared the folder
  mkdir -p -- "${place%/*}"
  kept_container::make_once kept_container::is_whole "${place}" "unpacking ${KIT_PACKAGES}" packages::unpack "${place}"
  kept_container::use "${place}"
  ! scratch::is_noexec "${place%/*/*}" || packages::check_code "${place}"
}

# packages::check_code PLACE - where no code can be loaded from this disk: says so if any of them is compiled. Some do without that part.
packages::check_code() {
  local found
  found="$(find "$1" -name '*.so' -printf '%P' -quit)"
  [[ -z "${found}" ]] ||
    kit::warn "${1%/*} is mounted noexec, so ${found} cannot be loaded from there" "have it mounted without, or name another node-local folder in the cluster's profile: \`scratch: /local\`"
}

# packages::unpack PLACE - under the lock; whoever is killed leaves a folder that is not used.
packages::unpack() {
  local -r place="$1" unfinished="${1%/*}/.${1##*/}.unfinished"
  local found
  kept_container::clear "${place}"
  [[ -r "${KIT_PACKAGES}" ]] ||
    kit::die "the packages ${KIT_PACKAGES} do not exist here or cannot be read" "put the project on a file system that every node sees; or submit again, which makes them anew" packages-missing
  scratch::need "${place%/*}" "${KIT_PACKAGES_BYTES}" "${KIT_PACKAGES}, unpacked,"
  found="$(sha256sum <"${KIT_PACKAGES}")"
  [[ "${found%% *}" == "${KIT_PACKAGES_SHA256}" ]] ||
    kit::die "${KIT_PACKAGES} was replaced after submission: its sha256 is ${found:0:12}, and was ${KIT_PACKAGES_SHA256:0:12}" "submit the job again" packages-replaced
  if ! (umask 077 && mkdir -- "${unfinished}") ||
    ! tar --extract --gzip --no-same-owner --directory "${unfinished}" --file "${KIT_PACKAGES}" ||
    ! packages::check_machine "${unfinished}" ||
    ! kept_container::stamp "${unfinished}" "packages ${KIT_PACKAGES}" ||
    ! chmod -R a-w -- "${unfinished}" ||
    ! mv --no-target-directory -- "${unfinished}" "${place}"; then
    kept_container::discard "${unfinished}"
    kit::die "cannot unpack ${KIT_PACKAGES} to ${place%/*}" "see the line above; free there: df -h ${place%/*}" disk-full
  fi
}

# packages::check_machine FOLDER - dies if their compiled modules are for the other kind of CPU, as where the login nodes have one and these
# nodes the other: Python would say of each that there is no such module.
packages::check_machine() {
  local machine other found
  machine="$(uname -m)"
  case "${machine}" in
    x86_64) other=aarch64 ;;
    aarch64) other=x86_64 ;;
    *) return 0 ;;
  esac
  found="$(find "$1" -name "*-${other}-linux-gnu.so" -printf '%P' -quit)"
  [[ -n "${found}" && -z "$(find "$1" -name "*-${machine}-linux-gnu.so" -print -quit)" ]] || return 0
  kept_container::discard "$1"
  kit::die "the packages are for machines with another CPU: this node's is ${machine}, and ${found} is for ${other}" "submit from a machine like the nodes; or build an image with the packages: kit build"
}

# packages::add - puts them behind what the job's own variables set.
packages::add() {
  [[ ":${PATH}:" == *":${KIT_PACKAGES_FOLDER}/bin:"* ]] || export PATH="${PATH:+${PATH}:}${KIT_PACKAGES_FOLDER}/bin"
  [[ ":${PYTHONPATH:-}:" == *":${KIT_PACKAGES_FOLDER}:"* ]] || export PYTHONPATH="${PYTHONPATH:+${PYTHONPATH}:}${KIT_PACKAGES_FOLDER}"
}
