# shellcheck shell=sh
# no_entrypoint.sh - what Enroot runs in a mounted image instead of its /etc/rc: the command, without the image's entrypoint.
exec "$@"
