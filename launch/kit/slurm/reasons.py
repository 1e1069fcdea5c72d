"""Put into plain words why Slurm lets a job wait, or refuses it."""

from __future__ import annotations

import re

NOT_STARTED = "it could not be started, and is held: scontrol release"
_REQUEUED = "it was requeued, and is held: scontrol release"
# Of jobs that Slurm has put back into its queue, and that nothing but their user starts again.
_HELD = {
    "launch failed requeued held": NOT_STARTED,
    "launch failure limit exceeded requeued held": NOT_STARTED,
    "user env retrieval failed requeued held": NOT_STARTED,
    "job requeued in held state": _REQUEUED,
    "job requeued in special exit state": _REQUEUED,
}
# https://slurm.schedmd.com/job_reason_codes.html, and slurmctld's own texts, as squeue shows them.
REASONS = {
    "Priority": "jobs of higher priority are before it",
    "Resources": "it is next, and waits for nodes to get free",
    "Dependency": "the job that it depends on has not ended",
    "DependencyNeverSatisfied": "the other job did not end as it was to: it will never start",
    "BeginTime": "its time to begin has not come",
    "JobArrayTaskLimit": "the array lets no more of its tasks run at once",
    "JobHeldUser": "you hold it: scontrol release",
    "JobHeldAdmin": "an administrator holds it",
    "PartitionDown": "its partition is down",
    "PartitionInactive": "its partition takes no jobs",
    "PartitionNodeLimit": "it asks for more nodes than its partition has, or gives one job",
    "PartitionTimeLimit": "it asks for more time than its partition gives: it will never start",
    "ReqNodeNotAvail": "a node that it needs is down, drained or reserved",
    "Reservation": "its reservation has not begun",
    "Licenses": "it waits for a licence",
    "MaxPoweredUpNodes": "the cluster lets no more nodes be switched on at once",
    "NvidiaImexChannels": "all channels between the GPUs of a rack (IMEX) are in use",
    "NodeDown": "a node that it needs is down",
    "BadConstraints": "no node has what it asks for: it will never start",
    "InvalidAccount": "its account is not valid: it will never start",
    "InvalidQOS": "its quality of service is not valid: it will never start",
    **_HELD,
}
_LIMIT = re.compile(r"\b(?:(?:Assoc|QOS)\w*(?:Limit|Max|Grp|Min)|Max\w+Per(?:Account|User))\w*")
# What such a name says, by a part of it; the first that fits counts. {} is who limits the job.
_LIMITS = {
    "^QOSMin": "it asks for less than {} demands: it will never start",
    "Submit": "no more jobs can be submitted now, and each task of an array counts as one",
    "Per(Job|Node)": "it asks for more than {} allows one job: it will never start",
    "Grp(?!.*Run).*(Min|Wall)": "it asks for more computing time than {} has left",
    "PerUser|MaxJobsLimit": "together with your running jobs, it would exceed what {} allows you",
    "Grp|PerAccount": "together with the running jobs of all who share {}, it would exceed what "
    "that allows",
    "": "a limit of {} is reached",
}
# The same where sbatch refuses a job: there it counts no running ones, but for their number.
_REFUSED = {
    "^QOSMin": "it asks for less than {} demands; ask for more",
    "Submit": _LIMITS["Submit"],
    "": "it alone asks for more than {} allows; ask for less",
}
# What to do about other refusals of sbatch, by its words.
_REFUSALS = {
    "Invalid account": "yours: sacctmgr show assoc user=$USER format=account,partition; "
    "in the job: `slurm: {account: NAME}`",
    "Invalid qos": "yours: sacctmgr show assoc user=$USER format=account,partition,qos; "
    "in the job: `slurm: {qos: NAME}`",
    "other parameter too long": "Slurm takes at most 4,096 characters of an array's task numbers: "
    "start fewer tasks at a time; if there is no array, another #SBATCH line is too long: "
    "kit submit JOB --dry-run shows them",
}
# What a refusal says of the partition that was asked for; the first that fits counts.
_OF_PARTITION = (
    ("Requested node configuration is not available", "it has no such nodes, or not as many"),
    ("Invalid account or account/partition combination", "your account may not use it"),
    ("not permitted to use this partition", "you may not use it"),
    ("Invalid generic resource", "it has no such GPUs"),
    ("time limit is invalid|PartitionTimeLimit", "it lets no job run for so long"),
    ("Invalid feature", "none of its nodes has the feature that the job wants"),
    ("invalid partition", "Slurm knows no such partition"),
    ("Invalid qos", "your QOS is not allowed there"),
    ("Memory specification", "its nodes have too little memory"),
    ("CPU count|More processors", "its nodes have too few CPUs"),
    ("limit|policy", "a limit of your account or QOS is in the way"),
)


def explain(reason: str, start: str) -> str:
    """Return Slurm's reason for waiting in plain words, and its estimate of the start time."""
    words = REASONS.get(_as_squeue_writes(reason).partition(",")[0], "")
    words = words or _limited(reason, _LIMITS)
    text = f"{reason}: {words}" if words else reason
    if reason in ("", "None"):
        text = "Slurm has not looked at it yet"
    return f"{text}; expected {start.replace('T', ' ')}" if start[:1].isdigit() else text


def is_held(reason: str) -> bool:
    """Return whether Slurm holds a job that it has put back into its queue."""
    return _as_squeue_writes(reason) in _HELD


def _as_squeue_writes(reason: str) -> str:
    return reason.replace("_", " ")  # scontrol writes no blanks


def fix_of_refusal(words: str) -> str:
    """Return what to do about the words with which sbatch refuses a job; "" where they tell it."""
    said = (fix for start, fix in _REFUSALS.items() if start in words)
    return next(said, "") or _limited(words, _REFUSED)


def of_partition(words: str) -> str:
    """Return in plain words, with Slurm's own, why a partition takes no such job."""
    prefix = r"\b(allocation failure|sbatch|Batch job submission failed): "
    sentence = " ".join(re.sub(prefix, "", words).split())
    for pattern, meaning in _OF_PARTITION:
        if re.search(pattern, sentence, re.IGNORECASE):
            return f"{meaning} ({sentence})"
    return sentence or "Slurm said nothing"


def _limited(words: str, meanings: dict[str, str]) -> str:
    """Return in plain words which limit Slurm's words name first, and how to see it."""
    found = _LIMIT.search(words)
    if not found:
        return ""
    name = found[0]
    who = "your account" if re.search("^Assoc|Account", name) else "its quality of service"
    look = "assoc user=$USER" if name.startswith("Assoc") else "qos"
    meaning = next(text for part, text in meanings.items() if re.search(part, name))
    return f"{meaning.format(who)}; the limits: sacctmgr show {look}"
