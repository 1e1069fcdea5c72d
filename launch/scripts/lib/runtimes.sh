# runtimes.sh - asks each runtime's own file what it alone knows; for probe.sh and collect.sh, which name no runtime.

# What a file may define for them. CONTRIBUTING.md says what each is for.
runtime::folders() { :; }
runtime::setuid() { :; }
runtime::works() { :; }
runtime::bare_shell() { :; }
runtime::cannot_mount() { :; }
runtime::cannot_mount_data() { :; }

# runtimes::ask COMMAND... - runs it once for each runtime, beside the functions of its file, with its name as the last argument.
runtimes::ask() {
  local file name
  for file in "${KIT_RUN_DIR}"/runtimes/*.sh; do
    name="${file##*/}"
    # shellcheck source=/dev/null
    (source "${file}" && "$@" "${name%.sh}")
  done
}
