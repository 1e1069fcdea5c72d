"""Turn a batch script into a job file: `kit import old.sbatch`."""
