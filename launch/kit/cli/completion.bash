# shellcheck shell=bash
# Behind Typer's script: an alias and a path of kit complete as well, and nothing stands between `partition=` and its value.
_kit() {
  _kit_completion "$(type -P "${1/#\~/"${HOME}"}" || echo kit)" 2>/dev/null
  if ((${#COMPREPLY[@]} == 1)) && [[ "${COMPREPLY[0]}" == *= ]]; then
    compopt -o nospace
  fi
}
complete -o default -o nosort -F _kit kit
