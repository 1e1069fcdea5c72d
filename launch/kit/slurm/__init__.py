"""All that calls Slurm. Text formats only: Slurm's JSON changes between versions."""

from kit.slurm.client import (
    GPU_CHOICE,
    Unsure,
    ask,
    at,
    check_one_cluster,
    end,
    environment,
    hide,
    inherited,
    user,
)
from kit.slurm.jobs import (
    FINAL,
    ID,
    WAITING,
    Job,
    Queued,
    State,
    accounted,
    cancel,
    cancel_by_name,
    cluster_name,
    is_active,
    is_held,
    of_folder,
    queue,
    same_folder,
    signal_batch_script,
    state,
    why_waiting,
)
from kit.slurm.nodes import (
    NodeFacts,
    Reservation,
    accounts,
    all_nodes,
    answers,
    config,
    default_account,
    down_nodes,
    job_partitions,
    machines,
    mpi_types,
    partitions,
    reservation,
    srun_has,
)
from kit.slurm.steps import SHORT_JOB_MB, Refused, begin_on_nodes, in_job, on_nodes, start_s
from kit.slurm.submission import Unknown, allocate, estimate, submit, test_only
