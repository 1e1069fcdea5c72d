"""Ports for programs of train/ that are told theirs: a port that the kernel chose, and that is closed again, others may be given meanwhile."""

import os
import socket

PORTS = range(20000, 32000)  # below those that Linux gives to outgoing connections


def _free_ports():
    """Yield ports that nobody has; each one once, and those of another process last."""
    first = os.getpid() * 499 % len(PORTS)
    while True:
        for port in (*PORTS[first:], *PORTS[:first]):
            try:
                socket.create_server(("127.0.0.1", port)).close()
            except OSError:
                continue
            yield port


ports = _free_ports()
