# image.sh - which image this is: every node must start the one that the job was submitted with.
# only: KIT_IMAGE

# image::identify - on the first node: sets KIT_FINGERPRINT, and dies where another image was put in the place of the one
# that was submitted, while the job waited.
image::identify() {
  local found
  [[ -f "${KIT_IMAGE}" ]] || return 0 # a folder, or an image that an engine has
  image::read
  KIT_FINGERPRINT="${found}"
  [[ -z "${KIT_SUBMITTED_FINGERPRINT}" || "${KIT_FINGERPRINT}" == "${KIT_SUBMITTED_FINGERPRINT}" ]] ||
    kit::die "${KIT_IMAGE} is not the image that this job was submitted with: its fingerprint is ${KIT_FINGERPRINT}, not ${KIT_SUBMITTED_FINGERPRINT}" \
      "put that one back, or submit again; to start with this one: empty KIT_SUBMITTED_FINGERPRINT and KIT_SUBMITTED_SHA256 in ${KIT_RUN_DIR}/env.sh" image-replaced
}

# image::check - on a node: the image is here, and is the one that the first node sees.
image::check() {
  local found="${KIT_FINGERPRINT:-}"
  [[ -r "${KIT_IMAGE}" ]] ||
    kit::die "the image ${KIT_IMAGE} does not exist here or cannot be read" "put it on a file system that every node sees" image-missing
  [[ ! -f "${KIT_IMAGE}" ]] || image::read
  [[ "${found}" == "${KIT_FINGERPRINT:-}" ]] ||
    kit::die "${KIT_IMAGE} differs here from the image on the first node" \
      "it was just replaced and this node has not noticed: submit again; or it is a copy on this node's own disk: copy it again" image-differs
}

# image::read - sets the caller's `found` to the fingerprint of KIT_IMAGE.
image::read() {
  found="$(image::fingerprint "${KIT_IMAGE}")" ||
    kit::die "the image ${KIT_IMAGE} cannot be read" "see the line above; try: head -c 1 '${KIT_IMAGE}'" image-missing
}

# image::fingerprint FILE - the same 16 digits as kit/config/image_files.py: size and both ends tell two builds apart. A byte in between
# that a disk changed is found where a node copies the image.
image::fingerprint() {
  local -r image="$1"
  local digest
  digest="$(set -o pipefail && { stat -Lc %s -- "${image}" && head -c 1048576 -- "${image}" && tail -c 1048576 -- "${image}"; } | sha256sum)" || return
  printf '%s\n' "${digest:0:16}"
}
