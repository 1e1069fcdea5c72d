# shellcheck shell=bash
# Completion of kit in bash. Switch it on with this line in ~/.bashrc:  source <(kit completion bash)

_kit() {
  local program
  program="$(type -P "${1/#\~/"${HOME}"}")" || program=kit # an alias is no program
  mapfile -t COMPREPLY < <("${program}" complete bash -- "$2" "${COMP_LINE:0:COMP_POINT}" 2>/dev/null)
  if ((${#COMPREPLY[@]} == 1)) && [[ "${COMPREPLY[0]}" == *[/=] ]]; then
    compopt -o nospace
  fi
}
# An older bash sorts what it shows.
complete -o nosort -F _kit kit 2>/dev/null || complete -F _kit kit
