"""On the login node: answers the requests of a laptop, one for each start of this program.

A request is a JSON object: `what` names it, and the other values are its function's arguments.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Callable, Optional

from kit.base.errors import KitError
from kit.remote import arrival, keeper, session
from kit.remote.session import ALIVE_S, PERIOD_S

SECRET_S = 60  # how long a request with values waits in memory
ANSWER_S = 10

Json = dict[str, Any]


def main(umask: int) -> None:
    """Answer the request on stdin, behind the mark that is the argument.

    A request for a connection, which has this program's streams, is the argument itself. `umask` is
    the user's, for commands: what kit itself writes here is the user's alone.
    """
    mark, *texts = sys.argv[1:]
    request = json.loads(base64.urlsafe_b64decode(texts[0]) if texts else sys.stdin.buffer.read())
    if "words" in request:
        request["umask"] = umask
    if texts:
        _CONNECTIONS[request.pop("what")](mark=mark, **request)
    else:
        print(f"\n{mark} {json.dumps(_answer(request))}", flush=True)


def _answer(request: Json) -> Json:
    """Return the answer to a request; {} for one that has only to be done."""
    try:
        return _ANSWERS[request.pop("what")](**request) or {}
    except KitError as error:
        return {"problem": error.problem, "fix": error.fix}
    except OSError as error:
        what = f"{error.filename}: " if error.filename else ""
        fix = "free space and rights there: df -h, quota -s"
        return {"problem": f"{what}{error.strerror}", "fix": fix}


def _begin(**request: Any) -> None:
    """Start a command, unless an earlier request for the same call has started it."""
    if made := session.make(request["folder"], request["call"]):
        keeper.start(made, _ready(request))


def hold(**request: Any) -> None:
    """Keep a request in memory until it is asked for: it may hold the values of secrets."""
    if not (made := session.make(request["folder"], request["call"])):
        return
    pipe = made / "request"
    os.mkfifo(pipe, 0o600)

    def wait() -> None:
        signal.alarm(SECRET_S)
        pipe.write_bytes(json.dumps(request).encode())  # as soon as somebody reads

    session.run_apart(wait)


def held(folder: str, call: str) -> Json:
    """Return the request that is held, and remove all that is left of it."""
    signal.alarm(ANSWER_S)  # else a reader waits for ever where nobody writes
    request: Json = json.loads((session.place(folder, call) / "request").read_bytes())
    signal.alarm(0)
    session.forget(folder, call)
    return request


def follow(folder: str, call: str, offset: int, mark: str) -> None:
    """Write the mark, and the spool of a call to stdout until its end, from byte `offset` on."""
    place = session.place(folder, call)
    if not place.is_dir():
        _send(f"\n{mark}\n".encode() + session.line(is_gone=True))
        return
    with suppress(BrokenPipeError), open(place / "spool", "rb") as spool:
        _send(f"\n{mark}\n".encode())
        spool.seek(offset)
        was_alive, looked_s, alive_s = True, 0.0, 0.0
        while True:
            if time.monotonic() - looked_s > ALIVE_S:  # it asks a file server
                was_alive, looked_s = session.is_alive(place), time.monotonic()
            line = spool.readline()
            if line.endswith(b"\n"):
                _send(line)
                if session.is_end(line):
                    return
                continue
            spool.seek(-len(line), os.SEEK_CUR)  # it is not complete yet
            if not was_alive:
                _send(session.line(is_killed=True))
                return
            if time.monotonic() - alive_s > ALIVE_S:
                alive_s = time.monotonic()
                _send(session.line())
                with suppress(OSError):
                    os.utime(place / "seen")
            time.sleep(PERIOD_S)


def _send(content: bytes) -> None:
    while content:
        content = content[os.write(1, content) :]


_ANSWERS: dict[str, Callable[..., Optional[Json]]] = {
    "place kit": arrival.place_kit,
    "receive": arrival.receive,
    "given folder": lambda **what: {"place": arrival.given_folder(**what)},
    "image": arrival.image_state,
    "place image": arrival.place_image,
    "begin": _begin,
    "hold": hold,
    "state": lambda folder, call: {
        "state": session.state(folder, call),
        "runs": keeper.runs_of(call),
    },
    "tell": session.tell,
    "finish": session.forget,
    "runs": lambda history: {"runs": keeper.new_runs(history)[0]},
}
_CONNECTIONS: dict[str, Callable[..., None]] = {
    "follow": follow,
    "become": lambda mark, **request: _become(request),
    "become held": lambda mark, **call: _become(held(**call)),
}


def _become(request: Json) -> None:
    """Replace this process by the command of a request."""
    ready = _ready(request)
    os.chdir(ready["workdir"])
    os.umask(ready["umask"])
    command = ready["command"]
    os.execve(command[0], command, {**os.environ, **ready["environment"]})  # noqa: S606


def _ready(request: Json) -> Json:
    """Return the request with its command: this Python, and this copy of kit."""
    if request["work"]:
        arrival.note_arrival(request["work"])
    folder = Path(request["workdir"])
    while not folder.is_dir():
        folder = folder.parent  # kit's own would be above all projects, and names mean runs below
    environment = {**request["environment"], "KIT_CALL": request["call"]}
    for name, files in request["given"].items():
        place = arrival.given_folder(request["folder"], name, files)
        if name == request["clusters"]:
            environment["KIT_CLUSTERS"] = place
    command = [sys.executable, str(Path(sys.argv[0]).parent), *request["words"]]
    return {**request, "workdir": str(folder), "command": command, "environment": environment}
