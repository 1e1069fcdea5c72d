"""Lists the causes that lie with a program: its code, its arguments and its modules."""

from __future__ import annotations

from kit.diagnose.why.cause import Cause, own_cause

CODE = (
    Cause(
        "glibc-too-old",
        "a program was built for a newer C library than this one: {version}",
        "run it in an image at least as new as the one in which it was built ({again:--image "
        "IMAGE}), or build it in this image",
        (
            r"version [`'](?P<version>GLIBC(?:XX)?_[\d.]+)' not found[^\n]*",
            r"version [`'](?P<version>CXXABI_[\d.]+)' not found[^\n]*",
        ),
        is_final=True,
    ),
    Cause(
        "library-missing",
        "a shared library is not there: {file}",
        "install it in the image, or choose an image that has it: {again:--image IMAGE}; to see "
        "what is missing: ldd FILE | grep 'not found'",
        (
            r"(?P<file>lib[\w.+-]*\.so[\w.]*): cannot open shared object file[^\n]*",
            r"cannot open shared object file[^\n]*",
            r"undefined symbol: [^\n]*",
        ),
        is_final=True,
    ),
    Cause(
        "module-missing",
        "there is no Python module {module} in {inside}",
        "add it to ./Dockerfile (to requirements.txt, if kit's own recipe built the image), and "
        "run kit build again; if it is your own code, run in its folder: {again:--workdir DIR}",
        (
            r"ModuleNotFoundError: No module named '(?P<module>[^'\n]*)'[^\n]*",
            r"No module named (?P<module>[\w.]+)$",
        ),
        local_fix=(
            "install it where the program runs (pip install), or in an image: add it to "
            "./Dockerfile, and run kit build; or name an image that has it: {again:--image IMAGE}; "
            "if it is your own code, run in its folder: {again:--workdir DIR}"
        ),
        is_final=True,
    ),
    own_cause(
        "import-failed",
        "a Python module cannot be loaded",
        "two versions do not fit each other, such as torch and torchvision from different builds: "
        "compare `pip list` in the image with what the program needs; kit build builds a new one",
        r"ImportError: [^\n]*",
        r"operator torchvision::\w+ does not exist[^\n]*",
        r"A module that was compiled using NumPy 1\.x cannot be run in[^\n]*",
    ),
    Cause(
        "syntax-error",
        "the program is not valid Python",
        "python -m py_compile {file} shows it; an older Python in the image may not know newer "
        "syntax",
        (
            (
                r'File "(?P<file>[^"\n]+)", line \d+\n(?:[^\n]*\n){1,2}'
                r"(?P<shown>\s*(?:SyntaxError|IndentationError|TabError): [^\n]*)"
            ),
            r"^\s*(?:SyntaxError|IndentationError|TabError): [^\n]*",
        ),
        is_final=True,
    ),
    Cause(
        "wrong-arguments",
        "the program does not accept its arguments",
        "to see its arguments: {program} --help; on kit's command line they come after --: kit "
        "submit JOB -- --epochs 3",
        (
            (
                r"^[^\n]*: error: (?:unrecognized arguments|the following arguments are required|"
                r"argument [^\n]*?: )[^\n]*"
            ),
            r"^[^\n]*: error: (?:one of the arguments|ambiguous option)[^\n]*",
            r"^Error: (?:No such option|Missing (?:option|argument)|Invalid value)[^\n]*",
        ),
        is_final=True,
    ),
    Cause(
        "not-a-number",
        "the loss, or a gradient, became NaN or infinite",
        "lower the learning rate or warm it up, clip gradients, look at the data of that step; "
        "torch.autograd.set_detect_anomaly(True) names the operation",
        (
            r"returned nan values in its \d+th output[^\n]*",
            (
                r"(?i:\b(?:loss|grad(?:ient)?s?(?: norm)?)\b[^\n]{0,40}\b(?:nan|inf|infinite|"
                r"non-?finite|not finite)\b)[^\n]*"
            ),
            (
                r"(?i:\b(?:nan|inf|infinite|non-?finite)\b[^\n]{0,20}\b(?:loss|"
                r"grad(?:ient)?s?)\b)[^\n]*"
            ),
        ),
        own_words=True,
    ),
    own_cause(  # before no-network, whose words its message may quote
        "hub-unreachable",
        "Hugging Face's Hub is not reachable, and the file is not in the local cache",
        "download it on the login node (HF_HOME=FOLDER hf download MODEL), then use only that "
        "folder: {again:--mount FOLDER:FOLDER --env HF_HOME=FOLDER --env HF_HUB_OFFLINE=1}",
        r"LocalEntryNotFoundError[^\n]*",  # of huggingface_hub
        r"We couldn't connect to 'https://[^\n]*",  # of transformers
    ),
    own_cause(
        "no-network",
        "there is no network, or a name cannot be resolved: nodes often cannot reach the internet",
        "fetch the data before the job, on the login node, and mount it; with Hugging Face: "
        "{again:--env HF_HUB_OFFLINE=1}; with a proxy: {again:--env https_proxy=URL}",
        (
            r"(?:Name or service not known|Temporary failure in name resolution|No address "
            r"associated with hostname|nodename nor servname)[^\n]*"
        ),
        r"(?:NameResolutionError|Network is unreachable)[^\n]*",
        (
            # A refused connection is one to a server of the program's own.
            r"(?:MaxRetryError|NewConnectionError|<urlopen error )(?![^\n]*Connection "
            r"refused)[^\n]*"
        ),
    ),
    own_cause(
        "no-access",
        "a server refuses a download without a login or a token",
        "pass the token as a secret: {again:--secret HF_TOKEN} (docs/secrets.md); for a gated "
        "model, accept the terms on its page first",
        r"(?:401|403) Client Error[^\n]*",
        r"GatedRepoError[^\n]*",
        r"HTTP Error 40[13][^\n]*",
    ),
    own_cause(
        "assertion",
        "an assertion of the program does not hold",
        "the lines above show where; look at the values there",
        r"^AssertionError\b[^\n]*",
    ),
)

# The names of a rank's end for which no pattern knows a better one.
EXCEPTION = Cause(
    "exception",
    "its own exception",
    "the lines above show where; its whole log: kit logs {job} --rank {rank}",
    where=(),
)
LOGGED = Cause(
    "exit-code",
    "the program left with exit code {code}, after it had logged {exception}",
    "look in the program for what exits with {code}; its whole log: kit logs {job} --rank {rank}",
    where=(),
)
EXIT = Cause(
    "exit-code",
    "the program left with exit code {code}, without an exception",
    "look in the program for what exits with {code}; its whole log: kit logs {job} --rank {rank}",
    where=(),
)

ENDS = (EXCEPTION, EXIT, LOGGED)
