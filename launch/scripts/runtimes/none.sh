# runtimes/none.sh - no container: the host's own Python.
# images: none

runtime::check() { :; }
runtime::prepare() { :; }
runtime::exec() { exec "$@"; }
