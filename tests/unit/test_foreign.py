"""A command that starts with another tool's launcher is refused, with that tool's numbers in the fix."""

from __future__ import annotations

import pytest
from kit.base.errors import Problems
from kit.config import other_tools

FIXES = {
    "torchrun --nproc-per-node 8 t.py --lr 1": "write `command: t.py --lr 1`, `processes_per_node: 8` and `launcher: torchrun`",
    "torchrun --nnodes=2 --nproc_per_node=4 -m pkg.train x": "write `command: python -m pkg.train x`, `nodes: 2`, `processes_per_node: 4` and `launcher: torchrun`",
    "torchrun --nproc-per-node gpu --nnodes 1:4 t.py": "write `command: t.py` and `launcher: torchrun`",
    "python3 -m torch.distributed.launch --nproc_per_node 2 t.py": "write `command: t.py`, `processes_per_node: 2` and `launcher: torchrun`",
    "/opt/venv/bin/accelerate launch --num_processes 16 --num_machines 2 t.py": "write `command: t.py`, `nodes: 2`, `processes_per_node: 8` and `launcher: torchrun`",
    "accelerate launch --cpu --num_processes 2 t.py": 'write `command: t.py`, `processes_per_node: 2`, `launcher: torchrun` and `env: {ACCELERATE_USE_CPU: "true"}`',
    "accelerate launch t.py --cpu": "write `command: t.py --cpu` and `launcher: torchrun`",
    "accelerate launch --num_processes 3 --num_machines 2 t.py": "write `command: t.py`, `nodes: 2` and `launcher: torchrun`",
    "deepspeed --num_gpus=8 t.py --deepspeed c.json": "write `command: t.py --deepspeed c.json`, `processes_per_node: 8` and `launcher: torchrun`",
    "fabric run --devices 4 t.py": "write `command: t.py`, `processes_per_node: 4` and `launcher: torchrun`",
    "srun -N 2 -n 8 python t.py": "write `command: t.py`, `nodes: 2`, `processes_per_node: 4` and `launcher: srun`",
    "torchrun --nnodes=2 --max_restarts 3 --rdzv_endpoint head:29500 --log-dir logs t.py": "write `command: t.py`, `nodes: 2`, `max_restarts: 3` and "
    "`launcher: torchrun`; this leaves out --log-dir: what the program needs of that goes into its arguments or `env`",
    "accelerate launch --mixed_precision=bf16 --config_file a.yaml --cpu --main_process_port 29500 t.py": "write `command: t.py`, `launcher: torchrun` and "
    '`env: {ACCELERATE_MIXED_PRECISION: "bf16", ACCELERATE_USE_CPU: "true"}`; this leaves out --config_file: to keep that, start accelerate itself on each node, '
    "under `script: |`",
    "srun -N2 -n8 --gres=gpu:4 python t.py": "write `command: t.py`, `nodes: 2`, `processes_per_node: 4` and `launcher: srun`; this leaves out --gres: "
    "what is asked of Slurm belongs under `slurm`",
    "uv run torchrun --nproc_per_node 8 t.py --lr 1": "write `command: uv run python t.py --lr 1`, `processes_per_node: 8` and `launcher: torchrun`",
    "uv run --frozen torchrun -m pkg.train": "write `command: uv run --frozen python -m pkg.train` and `launcher: torchrun`",
    "conda run -n deepspeed deepspeed t.py": "write `command: conda run -n deepspeed python t.py` and `launcher: torchrun`",
    "nsys profile -o /tmp/x -t cuda,nvtx uv run torchrun t.py": "write `command: nsys profile -o /tmp/x -t cuda,nvtx uv run python t.py` and `launcher: torchrun`",
    "nsys profile -o deepspeed torchrun t.py": "write `command: nsys profile -o deepspeed python t.py` and `launcher: torchrun`",
    "uv run -m torch.distributed.run --nproc_per_node 8 t.py": "write `command: uv run python t.py`, `processes_per_node: 8` and `launcher: torchrun`",
    "uv run --module torch.distributed.run -m pkg": "write `command: uv run python -m pkg` and `launcher: torchrun`",
    "timeout 3h mpirun -np 4 ./solver": "write `command: timeout 3h ./solver`, `processes_per_node: 4` and `launcher: mpi`",
    "python -u -m accelerate.commands.launch t.py": "write `command: t.py` and `launcher: torchrun`",
    "python -u -W ignore -X dev -m torch.distributed.run t.py": "write `command: t.py` and `launcher: torchrun`",
    "srun uv run torchrun --nproc_per_node 2 t.py": "write `command: t.py`, `processes_per_node: 2` and `launcher: torchrun`",
    "accelerate-launch --num_machines 2 --num_processes 16 t.py": "write `command: t.py`, `nodes: 2`, `processes_per_node: 8` and `launcher: torchrun`",
    "ds --num_gpus 4 t.py": "write `command: t.py`, `processes_per_node: 4` and `launcher: torchrun`",
    "ray symmetric-run --address h:6379 --min-nodes 4 --num-gpus=8 -- python -u t.py": "write `command: t.py`, `nodes: 4` and `launcher: ray`; "
    "this leaves out --address, --num-gpus: kit starts Ray itself, with the job's CPUs and GPUs",
    "ray job submit --address http://127.0.0.1:8265 --working-dir . -- python -m verl.trainer.main_ppo a=1": "write `command: python -m verl.trainer.main_ppo a=1` "
    "and `launcher: ray`; this leaves out --address, --working-dir: kit starts Ray itself, with the job's CPUs and GPUs",
    "composer -n 8 t.py": "write `command: t.py`, `processes_per_node: 8` and `launcher: torchrun`",
    "colossalai run --nproc_per_node 4 --host a,b t.py": "write `command: t.py`, `processes_per_node: 4` and `launcher: torchrun`",
    "mpirun -np 4 ./solver": "write `command: ./solver`, `processes_per_node: 4` and `launcher: mpi`",
    "docker run image t.py": "name the image, `image: FILE`, and only the program, `command: train.py`; folders go under `mounts`",
    "apptainer exec x.sif t.py": "name the image, `image: FILE`, and only the program, `command: train.py`; folders go under `mounts`",
    "sbatch x.sh": "kit writes the batch script: name the program that yours starts, and its #SBATCH options under `slurm`",
    "sudo t.py": "the ranks run as you; to be root inside of the container: `remap_root: true`",
}


@pytest.mark.parametrize("command", FIXES)
def test_another_tools_start_is_refused_with_its_numbers(command: str) -> None:
    problems = Problems()
    other_tools.refuse(command.split(), "job.yaml:1", problems)
    (problem,) = problems.found
    assert problem.fix == FIXES[command]


OWN = [
    *("t.py torchrun", "python t.py", "accelerate", "fabric.py", "python -m pkg.torchrun", "lightning", "docker.py", "./deepspeed.py", "uv run"),
    *("uv run train.py", "uv run train.py --launcher torchrun", "uv run --with deepspeed t.py", "uv run -m pkg --backend deepspeed", "uv run prog torchrun"),
    *("nsys profile python t.py", "nsys profile -o x python t.py --backend deepspeed", "conda run -n deepspeed python t.py", "timeout 3h python t.py"),
    *("nsys profile -o deepspeed python t.py", "nsys profile -o out/deepspeed python t.py", "ncu -o torchrun python t.py", "ncu --export srun python t.py"),
    *("perf record -o composer python t.py", "strace -o deepspeed python t.py", "uv run --project deepspeed t.py", "uv run --directory composer t.py"),
    *("conda run -n x --cwd composer python t.py", "uv run --module train deepspeed", "uv run -m train torchrun"),
    *("ray start --head", "megatron export", "vllm bench serve", "lmf webui", "ds.py"),
    *("axolotl preprocess c.yml", "axolotl train c.yml --launcher=python", "python -m axolotl.cli.train c.yml", "tune run full --config c", "swift export"),
    *("wandb sync wandb/offline-run-1", "wandb sweep --cancel x"),
]


@pytest.mark.parametrize("command", OWN)
def test_a_program_of_ones_own_is_taken(command: str) -> None:
    problems = Problems()
    other_tools.refuse(command.split(), "job.yaml:1", problems)
    assert problems.found == []
    assert other_tools.own_launcher(command.split())[1] == ""


@pytest.mark.parametrize(
    "command",
    [
        *("axolotl train c.yml", "uv run axolotl train c.yml --launcher torchrun", "/venv/bin/llamafactory-cli train c.yml", "swift sft --model x"),
        *("tune run --nproc_per_node 8 full --config c", "trl sft --config c", "trl reward", "trl rloo", "lmf train c.yaml", "megatron pt"),
        *("wandb agent --count 1 me/project/sweep", "uv run wandb agent me/project/sweep"),
        *("vllm serve m -tp 8", "uv run vllm serve m", "vllm run-batch -i a -o b --model m", "trl vllm-serve --model m", "/venv/bin/sglang serve m"),
        *("python3 -u -m vllm.entrypoints.openai.api_server --model m", "python -m sglang.launch_server --model-path m --tp 8"),
        *("python3 -m verl.trainer.main_ppo trainer.nnodes=2", "python -m openrlhf.cli.train_ppo_ray --ref_num_nodes 1"),
    ],
)
def test_a_program_with_a_launcher_of_its_own_is_known(command: str) -> None:
    assert other_tools.own_launcher(command.split())[1]
