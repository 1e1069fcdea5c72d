# Completion of kit in fish. Switch it on:  kit completion fish > ~/.config/fish/completions/kit.fish

function __kit_complete
    kit complete fish -- "" (commandline -cp | string collect) 2>/dev/null
end
complete -c kit -f -k -a '(__kit_complete)'
