# copies.sh - a copy of the image on every node's own disk, made once and reused; for the stages local and sbcast.

source "${KIT_RUN_DIR}/lib/image.sh"
source "${KIT_RUN_DIR}/lib/kept_container.sh"
source "${KIT_RUN_DIR}/lib/scratch.sh"

# stage::use - from here on, KIT_IMAGE is the copy. It is named by content: a rebuilt image gets another one.
stage::use() {
  local -r extension="${KIT_IMAGE##*.}"
  KIT_IMAGE="${KIT_SCRATCH:-/tmp}/kit-${UID}/images/${KIT_FINGERPRINT}.${extension}"
}

# stage::make_folder - the folder of the copies, which must be this user's own: a copy in somebody else's is not to be started.
stage::make_folder() {
  scratch::make
  mkdir -p -- "${KIT_MINE}/images"
}

# stage::has_copy - whether KIT_IMAGE, the copy, is there with its content, which a crash of the node may have lost.
stage::has_copy() { [[ -s "${KIT_IMAGE}" && "$(image::fingerprint "${KIT_IMAGE}")" == "${KIT_FINGERPRINT}" ]]; }

# stage::ensure FETCH - makes the copy, by FETCH SOURCE, unless it is there.
stage::ensure() {
  local -r fetch="$1" source="${KIT_IMAGE}"
  stage::use
  stage::make_folder
  kept_container::make_once stage::has_copy "${KIT_IMAGE}" "copying ${source} to ${KIT_IMAGE}" "${fetch}" "${source}"
  touch -c -- "${KIT_IMAGE}" # when it was last used, for `kit images gc`
}

# stage::accept FILE DIGEST SOURCE - moves a finished copy into place, if what the disk returns is what was read, and that is what
# the job was submitted with.
stage::accept() {
  local -r file="$1" expected="$2" source="$3"
  local found
  found="$(sha256sum <"${file}")"
  if [[ "${found%% *}" != "${expected%% *}" ]]; then
    rm -f -- "${file}"
    kit::die "the copy of the image on this node's disk is damaged: sha256 ${found:0:12}, not ${expected:0:12}" \
      "submit again without this node if it happens again: its disk or memory may be bad" image-damaged
  fi
  if [[ -n "${KIT_SUBMITTED_SHA256}" && "${found%% *}" != "${KIT_SUBMITTED_SHA256}" ]]; then
    rm -f -- "${file}"
    kit::die "${source} is damaged: its sha256 is ${found:0:12}, and was ${KIT_SUBMITTED_SHA256:0:12} at submission" \
      "put a good one in its place (kit build), and submit again; its disk or its file server may be bad" image-damaged
  fi
  chmod 400 -- "${file}"
  mv --no-target-directory -- "${file}" "${KIT_IMAGE}"
}
