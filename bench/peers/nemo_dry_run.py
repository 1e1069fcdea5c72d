"""NeMo-Run's dry run of two nodes of two tasks: it prints the sbatch script that it
would submit."""

import nemo_run as run

executor = run.SlurmExecutor(
    account="none",
    nodes=2,
    ntasks_per_node=2,
    time="01:00:00",
    job_dir="nemo",
    tunnel=run.LocalTunnel(job_dir="nemo"),
    packager=run.Packager(),  # the least: nothing is packed
)
with run.Experiment("train") as experiment:
    experiment.add(run.Script("train.py"), executor=executor, name="train")
    experiment.dryrun()
