"""What the image has, and what it lacks of a job's requirements: runs inside the image, before a
submission, with the image's own Python and pip. The request comes on standard input; the answer
is FOLDER/answer.json."""

import json
import os
import re
import shlex
import subprocess
import sys
import threading

QUIET = [
    "--no-input",
    "--disable-pip-version-check",
    "--progress-bar",
    "off",
    "--only-binary",
    ":all:",
]
CONSTRAINT = "-c "
OLDEST_PIP = (22, 2)  # the first with --report


def main(folder):
    request = json.loads(sys.stdin.readline())
    threading.Thread(target=end_with_kit, daemon=True).start()
    try:
        answer = respond(folder, request)
    except ImportError as error:
        answer = {"problem": f"its Python cannot: {error}", "said": ""}
    with open(os.path.join(folder, ".answer"), "w", encoding="utf-8") as file:
        json.dump(answer, file)
    os.rename(os.path.join(folder, ".answer"), os.path.join(folder, "answer.json"))


def end_with_kit():
    """Wait until the pipe closes: kit was killed, and what pip would still write is for nobody."""
    while os.read(0, 1):
        pass
    for process in Pip.running:
        process.kill()
    os._exit(1)


def respond(folder, request):
    have = installed()
    answer = {
        "python": "{}.{}".format(*sys.version_info),
        "executable": sys.executable,
        "have": have,
    }
    if not request["requirements"]:
        return answer
    try:
        import pip
    except ImportError:
        return {**answer, "problem": "no pip"}
    version = tuple(map(int, re.findall(r"[0-9]+", pip.__version__)[:2]))  # 24.1b1 is one, too
    if version < OLDEST_PIP:
        answer["problem"] = f"its pip is {pip.__version__}, and 22.2 or later is needed"
        return answer
    for name in list(os.environ):
        if name.startswith("PIP_") and name != "PIP_CONSTRAINT":
            del os.environ[name]
    os.environ.update(request["variables"], PIP_BREAK_SYSTEM_PACKAGES="1")
    return install(Pip(folder, request["keeps_downloads"]), request["requirements"], have, answer)


def installed():
    """Return {name: version}, of the first on sys.path where there are two."""
    from importlib import metadata

    found = {}
    for item in metadata.distributions():
        name = item.metadata["Name"]
        if name and item.version:  # a damaged one may have none
            found.setdefault(name.lower().replace("_", "-").replace(".", "-"), item.version)
    return found


class Pip:
    running = ()

    def __init__(self, folder, keeps_downloads):
        self.folder = folder
        self.cache = (
            ["--cache-dir", os.path.join(folder, "cache")]
            if keeps_downloads
            else ["--no-cache-dir"]
        )

    def write(self, name, lines):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write("".join(quoted(line) + "\n" for line in lines))
        return path

    def install(self, *words):
        """Return pip's exit code and what it said."""
        command = [sys.executable, "-m", "pip", "install", *QUIET, *self.cache, *words]
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        Pip.running = [process]
        said = process.communicate()[0]
        return process.returncode, said.decode("utf-8", "replace")


def quoted(line):
    """Return a line as pip reads it: as a shell does, where an option names a folder."""
    option, _, place = line.partition(" ")
    return f"{option} {shlex.quote(place)}" if option == "--find-links" else line


def install(pip, lines, have, answer):
    wanted = [line for line in lines if not line.startswith(CONSTRAINT)]
    requirements = pip.write("requirements.txt", wanted)
    own = [line[len(CONSTRAINT) :] for line in lines if line.startswith(CONSTRAINT)]
    of_image = [f"{name}=={version}" for name, version in have.items() if is_version(version)]
    constraints = pip.write("constraints.txt", [*own, *of_image])
    report = os.path.join(pip.folder, "report.json")
    code, said = pip.install("--dry-run", "--report", report, "-r", requirements, "-c", constraints)
    if code:
        return {**answer, "problem": "resolve", "said": said}
    with open(report, encoding="utf-8") as file:
        missing = json.load(file)["install"]
    lock = sorted(locked(item) for item in missing)
    target = os.path.join(pip.folder, "packages")
    os.makedirs(target)
    if lock:
        # What the image's makers constrain is heeded above; a lock names single files.
        os.environ.pop("PIP_CONSTRAINT", None)
        options = [line for line in wanted if line.startswith("-")]
        file = pip.write("lock.txt", [*options, *lock])
        code, said = pip.install("--no-deps", "--target", target, "-r", file)
        if code:
            return {**answer, "problem": "install", "said": said}
    return {**answer, "lock": lock}


def locked(item):
    """Return a line for one package: its name, its version, and the sha256 of its wheel."""
    line = "{}=={}".format(item["metadata"]["name"], item["metadata"]["version"])
    archive = item["download_info"].get("archive_info", {})
    hashes = archive.get("hashes") or dict([archive.get("hash", "=").split("=", 1)])
    return "{} --hash=sha256:{}".format(line, hashes["sha256"]) if hashes.get("sha256") else line


def is_version(text):
    """Return whether pip can read a version; a Linux distribution may write others."""
    from pip._vendor.packaging.version import InvalidVersion, Version

    try:
        Version(text)
    except InvalidVersion:
        return False
    return True


main(sys.argv[1])
