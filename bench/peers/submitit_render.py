"""submitit's sbatch file for two nodes of two tasks, as its executor writes it before it calls
sbatch, which it would do at once."""

import sys
from pathlib import Path

import submitit

executor = submitit.SlurmExecutor(folder=Path(sys.argv[1]))
executor.update_parameters(job_name="train", nodes=2, ntasks_per_node=2, time=60)
folder = Path(sys.argv[1])
folder.mkdir()
text = executor._make_submission_file_text(executor._submitit_command_str, "0")
(folder / "submission.sh").write_text(text)
