# kept_cache.sh - with `cache: keep`: the first node packs its folder of compile caches into one file beside the image when the ranks
# have ended, and a node whose folder is empty begins with that file. See cache.sh, which sources this, and docs/compile-caches.md.
# only: KIT_CACHE=keep

source "${KIT_RUN_DIR}/lib/kept_container.sh"

KIT_CACHE_FILE='' # on the first node

# kept_cache::file - prints the file beside the image. Its name has the user's number: others may share the image.
kept_cache::file() {
  local -r image="${KIT_IMAGE%/}"
  printf '%s/%s-%s.tar.gz' "${image%/*}" "${KIT_CACHE_DIR##*/}" "${UID}"
}

# kept_cache::seed FILE - fills an empty folder with what an earlier job kept. Whatever goes wrong, the job begins cold.
kept_cache::seed() ( # its end closes what it opened
  local -r file="$1" unfinished="${KIT_CACHE_ROOT}/.${KIT_CACHE_DIR##*/}.unfinished"
  local lock kept said
  [[ -e "${file}" && ! -e "${KIT_CACHE_DIR}/.kit-kept" ]] || return 0
  if ! { exec {lock}>"$(kept_container::lock "${KIT_CACHE_DIR}")"; } 2>/dev/null || ! flock --timeout 300 "${lock}"; then
    kit::warn "the kept compile caches are not used: no lock in ${KIT_CACHE_ROOT}" "see who holds it: fuser ${KIT_CACHE_ROOT}/.*.lock; free some space there"
    return
  fi
  rmdir -- "${KIT_CACHE_DIR}/cuda" 2>/dev/null || true
  [[ -z "$(find "${KIT_CACHE_DIR}" -mindepth 1 -print -quit)" ]] || return 0 # somebody filled it while we waited
  # A cache is code that the ranks will run. What was opened is looked at: the name may lead to another file by now.
  if [[ ! -f "${file}" ]] || ! { exec {kept}<"${file}"; } 2>/dev/null || [[ ! -f "/dev/fd/${kept}" || ! -O "/dev/fd/${kept}" ]]; then
    kit::warn "the kept compile caches are not used: ${file} is not a readable file of your own" "look at it: ls -l ${file}; remove it, and the next job keeps its own"
  elif ! said="$(kept_cache::unpack "${unfinished}" 2>&1 <&"${kept}")"; then
    kit::warn "the kept compile caches are not used: ${said##*$'\n'}" "if the file is damaged: rm ${file}; free in ${KIT_CACHE_ROOT}: df -h ${KIT_CACHE_ROOT}; remove by hand what kit cannot remove"
  fi
  kept_cache::discard "${unfinished}" || true
)

# kept_cache::unpack FOLDER - under the lock, from standard input: into FOLDER, then moved over the empty folder, which fails if a program has
# written there meanwhile.
kept_cache::unpack() {
  local -r folder="$1"
  { kept_cache::discard "${folder}" || ! printf 'cannot remove %s\n' "${folder}"; } && # left by a start that was killed
    (umask 077 && mkdir -- "${folder}") &&
    timeout 300 tar --extract --gzip --no-same-owner --no-same-permissions --directory="${folder}" &&
    touch -- "${folder}/.kit-kept" && # everything before it is in the file
    mv --no-target-directory -- "${folder}" "${KIT_CACHE_DIR}"
}

kept_cache::discard() { [[ ! -e "$1" ]] || remove::tree "$1" "\.${KIT_CACHE_PATTERN}\.unfinished"; }

# kept_cache::keep CODE - the last that the first node does, when the ranks have ended: in bounded time, and a kill leaves the file as it was.
kept_cache::keep() {
  local -r file="${KIT_CACHE_FILE}" unfinished="${KIT_CACHE_FILE%/*}/.${KIT_CACHE_FILE##*/}.${SLURM_JOB_ID}.unfinished"
  local -r fix="make room there, or copy the image to a folder where you may write; or write \`cache: node\`"
  local -r mark="${KIT_CACHE_DIR:-}/.kit-packing.${SLURM_JOB_ID}" # no folder is chosen yet where the job ends before its ranks
  local -i limit_s=60
  local -a settled=() age=()
  # A compiler that was killed with its rank may have left half a file under its name: what was written last is for the next job to keep.
  # And Slurm may end this script soon.
  (($1 == 0)) || settled=(-mmin +1) age=(-d '-60 seconds') limit_s=10
  [[ -n "${file}" && -n "${KIT_RANKS_BEGUN_S:-}" ]] && cache::are_own && kept_cache::has_news || return 0
  [[ ! -e "${file}" || -O "${file}" ]] || return 0 # `prepare` has said so
  if [[ ! -w "${file%/*}" ]]; then
    kit::warn "the compile caches are not kept: ${file%/*} is not writable" "${fix}"
    return
  fi
  find "${file%/*}" -maxdepth 1 -name ".${file##*/}.*.unfinished" -user "${UID}" -mmin +60 -delete 2>/dev/null || true # of jobs that were killed
  kept_cache::pack || kit::warn "the compile caches are not kept: ${file} was not written to its end, or not within ${limit_s} s" "${fix}"
  rm -f -- "${unfinished}" "${mark}"
}

# kept_cache::pack - writes the file under another name first. What is not in it is newer than the caller's `mark`. Others may write to the
# image's folder: a link that one of them put there is not followed.
kept_cache::pack() {
  touch "${age[@]}" -- "${mark}" && rm -f -- "${unfinished}" && (umask 077 && set -o noclobber && kept_cache::archive >"${unfinished}") &&
    mv --no-target-directory -- "${unfinished}" "${file}" &&
    mv --no-target-directory -- "${mark}" "${KIT_CACHE_DIR}/.kit-kept"
} 2>/dev/null

# kept_cache::archive - prints the folder's files. Another job may compile there, whose temporary files come and go.
kept_cache::archive() (
  local -i rc=0
  cd -- "${KIT_CACHE_DIR}" || return
  find . -type f ! -name '.kit-*' ! -path "./python${KIT_RUN_DIR}/*" "${settled[@]}" -print0 |
    timeout "${limit_s}" tar --create --use-compress-program='gzip -1' --ignore-failed-read --null --files-from=- --file=- || rc=$?
  ((rc <= 1)) # 1: a file changed while it was read
)

# kept_cache::has_news - whether the folder holds what the file does not, and may be packed. Locks, which are empty, are no news, nor is
# bytecode, which each run has of its own code.
kept_cache::has_news() {
  local -a newer=()
  [[ ! -e "${KIT_CACHE_FILE}" || ! -e "${KIT_CACHE_DIR}/.kit-kept" ]] || newer=(-newer "${KIT_CACHE_DIR}/.kit-kept")
  [[ -n "$(find "${KIT_CACHE_DIR}" -type f -size +0 ! -name '.kit-*' ! -path '*/kit-cache-*/python/*' "${newer[@]}" "${settled[@]}" -print -quit 2>/dev/null)" ]]
}
