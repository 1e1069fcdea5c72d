# shellcheck shell=bash
# enroot.sh - creates Enroot's containers so that a half-made or outdated one is never started; for the runtimes
# enroot and pyxis.

# enroot::ensure NAME - creates the container NAME from KIT_IMAGE in ENROOT_DATA_PATH unless it is there, whole.
# It is unpacked under another name and moved into place, stamped; the warm path takes no lock.
enroot::ensure() {
  local -r name="$1"
  local -r rootfs="${ENROOT_DATA_PATH}/${name}"
  [[ ! -e "${rootfs}/.kit-complete" ]] || return 0

  local lock
  exec {lock}>"${ENROOT_DATA_PATH}/.${name}.lock"
  flock --timeout 900 "${lock}" ||
    kit::die "another job has been creating ${name} for 15 minutes" "look for it: fuser ${ENROOT_DATA_PATH}/.${name}.lock"
  if [[ ! -e "${rootfs}/.kit-complete" ]]; then # nobody made it while we waited
    enroot::create "${name}"
  fi
  exec {lock}>&-
}

# enroot::create NAME - under the lock.
enroot::create() {
  local -r name="$1"
  local -r unfinished=".${name}.unfinished"
  local output
  enroot::remove "${unfinished}" # left by a start that was killed
  enroot::remove "${name}"
  kit::say "creating the container ${name} from ${KIT_IMAGE}"
  if ! output="$(enroot create --name "${unfinished}" "${KIT_IMAGE}" 2>&1 </dev/null)"; then
    enroot::remove "${unfinished}"
    printf '%s\n' "${output}" | tail -n 5 >&2
    kit::die "enroot cannot unpack ${KIT_IMAGE}" \
      "see the lines above; free space here: $(df -h --output=avail -- "${ENROOT_DATA_PATH}" | tail -n 1 | tr -d ' ') in ${ENROOT_DATA_PATH}"
  fi
  printf 'image %s\n' "${KIT_IMAGE}" >"${ENROOT_DATA_PATH}/${unfinished}/.kit-complete"
  mv --no-target-directory -- "${ENROOT_DATA_PATH}/${unfinished}" "${ENROOT_DATA_PATH}/${name}"
}

enroot::remove() {
  [[ ! -e "${ENROOT_DATA_PATH}/$1" ]] || enroot remove --force "$1" >/dev/null 2>&1 || rm -rf -- "${ENROOT_DATA_PATH:?}/$1"
}
