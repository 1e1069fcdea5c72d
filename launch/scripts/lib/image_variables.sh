# image_variables.sh - the variables that an image sets, where it is a squashfs file.

# image_variables::print - a line for each. `unsquashfs -cat` would need squashfs-tools 4.5.
image_variables::print() {
  local folder
  folder="$(mktemp -d "${TMPDIR:-/tmp}/kit-image.XXXXXX")" || return 1
  ! timeout 60 unsquashfs -no-progress -dest "${folder}/files" "${KIT_IMAGE}" etc/environment >/dev/null 2>&1 ||
    [[ ! -f "${folder}/files/etc/environment" || -L "${folder}/files/etc/environment" ]] || cat -- "${folder}/files/etc/environment"
  rm -f -- "${folder}/files/etc/environment"
  rmdir -- "${folder}/files/etc" "${folder}/files" "${folder}" 2>/dev/null || true
}
