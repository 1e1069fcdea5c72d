#compdef kit
# Completion of kit in zsh. Switch it on with this line in ~/.zshrc:  source <(kit completion zsh)

_kit() {
  local line value
  local -a whole whole_shown open open_shown
  for line in "${(@f)$(${~words[1]} complete zsh -- "" "${(j: :)words[1,CURRENT-1]} ${QIPREFIX}${PREFIX}" 2>/dev/null)}"; do
    value="${line%%$'\t'*}"
    if [[ "${value}" == *[/=] ]]; then
      open+=("${value}") open_shown+=("${line/$'\t'/  -- }")
    elif [[ -n "${value}" ]]; then
      whole+=("${value}") whole_shown+=("${line/$'\t'/  -- }")
    fi
  done
  # -Q: the values are quoted already. What goes on has no space behind it.
  (( ${#whole} )) && compadd -Q -V kit -ld whole_shown -a whole
  (( ${#open} )) && compadd -Q -V kit -S '' -ld open_shown -a open
}

if [[ "${zsh_eval_context[-1]}" == loadautofunc ]]; then
  _kit "$@"  # a file named _kit in fpath, at the first Tab
else
  (( ${+functions[compdef]} )) || { autoload -Uz compinit && compinit }
  compdef _kit kit
fi
