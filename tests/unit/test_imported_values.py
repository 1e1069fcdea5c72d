"""kit import: what the batch script's shell puts into a command once is not computed anew by each task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from kit.base import bash_tree
from kit.importing import containers
from kit.importing.draft import REMARK
from test_import import convert, keys, questions


def job(body: str) -> dict[str, Any]:
    """The job that is made of a script, whatever it leaves open."""
    return dict(yaml.load(convert(body).job, Loader=yaml.BaseLoader))


def remarks(body: str) -> list[str]:
    return [entry.reason for entry in convert(body).entries if entry.kind == REMARK]


# ---------------------------------------------------------------- the text of bash -c


@pytest.mark.parametrize("value", ["$(date +%s)", "$RANDOM", "$(hostname)", "$HOSTNAME", "$$", "`cat number`"])
def test_what_the_batch_shell_computes_for_all_tasks_is_computed_once(value: str) -> None:
    made = keys(f'#SBATCH -N 1 --ntasks-per-node=4\nsrun bash -c "python train.py --run run-{value}"\n')
    assert made["script"] == "python train.py --run run-$VALUE_1\n"
    assert made["host_setup"] == f"VALUE_1={value}\nexport VALUE_1\n"
    each = keys(f"#SBATCH -N 1 --ntasks-per-node=4\nsrun bash -c 'python train.py --run run-{value}'\n")
    assert "host_setup" not in each


def test_a_computed_value_gets_a_name_that_the_script_does_not_have() -> None:
    made = keys('VALUE_1=$(date)\nsrun bash -c "python t.py $(date) $RANDOM $VALUE_1"\n')
    assert made["script"] == "python t.py $VALUE_2 $VALUE_3 $VALUE_1\n"


def test_a_value_that_is_an_option_of_torchrun_or_the_program_itself_is_not_computed() -> None:
    made = keys('srun bash -c "torchrun --nproc_per_node 2 --rdzv_endpoint $(hostname):29500 t.py"\n')
    assert (made["command"], made.get("host_setup")) == ("t.py", None)
    assert "VALUE" not in convert('srun bash -c "$(which python) t.py"\n').job


def test_in_a_container_a_value_that_differs_between_the_tasks_is_a_question() -> None:
    assert questions('srun --container-image=/i.sqsh bash -c "python t.py $(date)"\n') == ["each task would get a $VALUE_1 of its own: write the value"]


@pytest.mark.parametrize("command", ["python t.py --rank $SLURM_PROCID", 'bash -c "python t.py --rank $SLURM_PROCID"'])
def test_a_number_of_the_task_that_the_batch_shell_wrote_is_named(command: str) -> None:
    way = "$SLURM_PROCID was 0 in every task: the batch script wrote its own into the command, and here each has its own"
    assert remarks(f"#SBATCH -N 2 -n 2\nsrun {command}\n") == [way]
    assert remarks(f"#SBATCH -N 1 -n 1\nsrun {command}\n") == []
    assert remarks(f"#SBATCH -N 2 -n 2\nsrun {command}\n".replace("$SLURM", "\\$SLURM")) == []


@pytest.mark.parametrize("name", ["*", "1", "#"])
def test_arguments_of_the_batch_script_in_the_text_of_bash_are_a_question(name: str) -> None:
    (question,) = questions(f'srun bash -c "python train.py ${name}"\n')
    assert question.startswith("the command has arguments of the batch script: ")
    (question,) = questions(f'LR=${name}\nsrun bash -c "python train.py --lr $LR\npython eval.py"\n')
    assert question.startswith("the command has arguments of the batch script: ")


def test_the_status_of_the_batch_shell_in_the_text_of_bash_is_a_question() -> None:
    assert questions('srun bash -c "python train.py $?"\n') == ["$? was that of the batch script's shell: write the value"]
    assert questions("srun bash -c 'python train.py; echo $?'\n") == []


UNREADABLE = "(((A)) || echo b)"


def test_a_value_between_quotes_of_a_text_that_kit_cannot_read_stays_a_value() -> None:
    body = f"R=$(date +%s)\nsrun bash -c \"python train.py --run '$R'; {UNREADABLE}\"\n"
    assert questions(body) == ["kit import cannot read what bash -c is given"]
    assert job(body)["script"] == f"eval \"python train.py --run '$R'; {UNREADABLE}\"\n"


def test_a_number_of_slurm_in_a_text_that_kit_cannot_read_is_a_question() -> None:
    asked = questions(f'#SBATCH --gpus-per-node=4\nsrun bash -c "python t.py $SLURM_GPUS_PER_NODE; {UNREADABLE}"\n')
    assert "$SLURM_GPUS_PER_NODE was 4, and the job's own may be another: write the number that is meant" in asked


def test_a_command_that_begins_like_arithmetic_is_read_as_bash_reads_it() -> None:
    made = keys("srun bash -c 'python t.py --local $(((SLURM_NODEID)) && echo 0 || echo 1) --n=$(((1 + 2) * 3))'\n")
    assert made["script"] == "python t.py --local $( ((SLURM_NODEID)) && echo 0 || echo 1) --n=9\n"
    (node,) = bash_tree.parse("A=$(( (B) ) ) C=$(((D)))\n", "text")
    assert bash_tree.text(node) == "A=$( ( (B) ) ) C=$(((D)))"


# ---------------------------------------------------------------- the folder in which the script is


@pytest.mark.parametrize(
    ("command", "source"),
    [
        ("srun --container-image={a} --container-mounts={d}:/d,/x:/y,$PWD:/w", "./"),
        ("apptainer exec -B {d}:/d,/x:/y,$PWD:/w {a}", ""),
        ("enroot start --mount {d}:/d --mount /x:/y --mount $PWD:/w {a}", "./"),
    ],
)
def test_an_image_and_mounts_are_found_from_the_folder_that_the_script_has_entered(command: str, source: str) -> None:
    line = f"{command.format(a=f'{source}a.sqsh', d=f'{source}d')} python t.py\n"
    made = job(f"cd /data/proj\n{line}")
    assert (made["image"], made["mounts"]) == ("/data/proj/a.sqsh", ["/data/proj/d:/d", "/x:/y", "/data/proj:/w"])
    made = job(f"cd sub\n{line}")
    assert (made["image"], made["mounts"]) == ("./sub/a.sqsh", ["./sub/d:/d", "/x:/y", "sub:/w"])
    assert not [text for text in questions(f"cd sub\n{line}") if "whole path" in text]
    for lines in ("cd $(cat x)", "if [ -d x ]; then cd x; fi", "cd /a\npushd b\npopd"):
        asked = [text.partition(":")[0] for text in questions(f"{lines}\n{line}") if "whole path" in text]
        assert asked == [f"`{source}a.sqsh`", f"`{source}d", "`$PWD"]
    assert not [text for text in questions(f"cd $(cat x)\ncd /data\n{line}") if "whole path" in text]


def test_mounts_of_a_variable_are_found_from_the_folder_that_the_script_has_entered() -> None:
    made = job("cd /data\nexport APPTAINER_BIND=d:/d\napptainer exec ./i.sif python t.py\n")
    assert made["mounts"] == ["/data/d:/d"]


def test_an_image_of_a_registry_and_one_of_a_name_are_found_in_no_folder() -> None:
    assert job("cd /data\nenroot start torch python t.py\n")["image"] == "torch"
    assert "kit build docker://a/b" in questions("cd /data\nsrun --container-image=a/b python t.py\n")[0]


# ---------------------------------------------------------------- variables that no line of the job names

READERS = ["source config.sh", ". ./config.sh", "[ -f c.sh ] && . c.sh", 'eval "$(cat c.sh)"', 'echo "${!NAME}" >f', "f() { source c.sh; }\nf"]


@pytest.mark.parametrize("line", READERS)
@pytest.mark.parametrize("container", ["", "--container-image=/i.sqsh "])
def test_what_a_sourced_file_may_read_is_set_before_it(line: str, container: str) -> None:
    made = job(f"MODEL=llama\nexport A=1\nSIZE=$MODEL-7b\n{line}\nLATER=1\nsrun {container}python t.py\n")
    lines = f"{made.get('setup', '')}{made.get('host_setup', '')}"
    assert lines.startswith("MODEL=llama\nSIZE=$MODEL-7b\n") and "LATER" not in lines and "A=1" not in lines
    assert made["env"] == {"A": "1"}


@pytest.mark.parametrize(
    "line",
    "source venv/bin/activate;. ~/.bashrc;source /etc/profile;source /opt/intel/setvars.sh;module load cuda"
    ';eval "$(conda shell.bash hook)";source /usr/share/lmod/lmod/init/bash'.split(";"),
)
def test_what_an_environment_does_not_read_stays_out(line: str) -> None:
    assert "host_setup" in job(f"MODEL=llama\n{line}\nsrun python t.py\n")
    assert "MODEL=llama" not in "".join(job(f"MODEL=llama\n{line}\nsrun python t.py\n")["host_setup"])


def test_what_the_program_reads_by_the_name_in_another_variable_is_set() -> None:
    assert job("MODEL=llama\nV=MODEL\nsrun python t.py ${!V}\n")["script"] == "MODEL=llama\nV=MODEL\npython t.py ${!V}\n"
    assert not remarks('CMD="for i in 1; do python t.py $(date) \\$i; done"\n. ./c.sh\neval $CMD\n')
    assert "LR=3\n" in job('LR=3\nCMD="python t.py --run $(date) --lr \\$LR"\neval $CMD\n')["script"]


def test_a_text_of_each_task_does_not_read_what_the_batch_shell_has_not_exported() -> None:
    made = keys("MODEL=llama\nsrun bash -c 'source config.sh && python t.py'\n")
    assert made["setup"] == "source config.sh\n" and "host_setup" not in made


# ---------------------------------------------------------------- numbers


@pytest.mark.parametrize(("lines", "number"), [("", "$NGPUS"), ("NGPUS=$(cat ranks.txt)\n", "$NGPUS"), ("", "$(nvidia-smi -L | wc -l)")])
def test_a_number_of_ranks_that_is_computed_is_named(lines: str, number: str) -> None:
    body = f"#SBATCH --gpus-per-node=4\n{lines}srun torchrun --nproc_per_node={number} t.py\n"
    assert remarks(body) == [f"{number} is a number of ranks that only the job knows: kit starts one for each GPU of a node (4)"]
    assert remarks("#SBATCH --gpus-per-node=4\nN=4\nsrun torchrun --nproc_per_node=$N t.py\n") == []


@pytest.mark.parametrize("command", ["mpirun -x M=$SLURM_NNODES -x D=$PWD/d -np 4", "srun --export=ALL,M=$SLURM_NNODES,D=$PWD/d"])
def test_a_number_of_nodes_among_options_stays_the_jobs_own(command: str) -> None:
    made = keys(f"#SBATCH -N 4\n{command} ./a\n")
    assert (made["setup"], made["env"]) == ("export M=$SLURM_NNODES\n", {"D": "./d"})


@pytest.mark.parametrize("tasks", ["--ntasks-per-node=2", "-n 8"])
def test_gpus_of_a_task_among_other_resources_are_counted_for_its_node(tasks: str) -> None:
    body = f"#SBATCH -N 4 --gpus=8 --tres-per-task=gres:gpu:1,cpu:4 {tasks}\nsrun ./a\n"
    assert questions(body) == ["each rank saw GPUs of its own; now it sees all and takes its LOCAL_RANK's"]
    assert (job(body)["gpus_per_node"], job(body)["slurm"]) == ("2", {"tres-per-task": "cpu:4"})
    assert "slurm" not in job("#SBATCH -n 1 --tres-per-task=gres/gpu:2\nsrun ./a\n")


def test_options_for_memory_of_which_sbatch_takes_one_are_a_question() -> None:
    assert questions("#SBATCH --mem-per-cpu=4G\n#SBATCH --mem-per-gpu=8G\nsrun ./a\n") == [
        "--mem-per-gpu beside --mem-per-cpu: sbatch takes one of them; keep the one that is meant"
    ]


# ---------------------------------------------------------------- commands


def test_a_setting_of_the_shell_that_goes_into_a_file_is_kept() -> None:
    made = keys("A=1\nset -x\nset > vars.log\ndeclare -p A > a.txt\nexport -p >>b.txt\ndeclare -p A\n./a\n")
    assert made["host_setup"] == "A=1\nset > vars.log\ndeclare -p A > a.txt\nexport -p >>b.txt\n"
    assert job("set > vars.log\nsource run.sh\n").get("command") is None


@pytest.mark.parametrize("words", ["", " --db_dir=/x --y 1"])
def test_the_program_of_an_images_own_start_script_is_a_question(words: str) -> None:
    assert questions(f"apptainer run i.sif{words}\n") == ["the image's own start script ran, as it does not here: name the program itself"]
    assert "command" not in job(f"apptainer run i.sif{words}\n")


def test_lines_in_several_folders_of_a_container_stay_in_order() -> None:
    start = "srun --container-image=/i.sqsh --container-mounts=$PWD:/w bash -c"
    text = "cd /w && git clone x nccl && cd /w/nccl && make -j"
    made = keys(f"{start} '{text}'\n")
    assert made["script"] == f"{text}\n" and "workdir" not in made and "setup" not in made
    assert keys(f"{start} 'echo a; cd /w && cd /w/nccl && make -j'\n")["workdir"] == "nccl"
    assert keys(f"{start} 'source /x/activate && cd /w/./a && python t.py'\n")["workdir"] == "a"
    assert keys("srun bash -c 'source venv/activate && cd a && python t.py'\n")["script"] == "source venv/activate && cd a && python t.py\n"


@pytest.mark.parametrize(
    "line", ["srun {}python t.py", "srun {}./a", "srun {}python /a/t.py --config=conf/x.yaml", "srun {}bash -c 'for i in 1; do python t.py; done'"]
)
def test_the_folder_of_a_pyxis_image_is_named_where_a_program_has_relative_paths(line: str) -> None:
    pyxis = "--container-image=/i.sqsh --container-mounts=$PWD:/w "
    for body in (f"{line.format(pyxis)}\n", f"#SBATCH {pyxis.replace('$PWD:/w', '/w')}\n{line.format('')}\n"):
        assert remarks(body) == [containers.IN_IMAGES_FOLDER]
    assert containers.IN_IMAGES_FOLDER not in remarks(f"{line.format(f'{pyxis}--container-workdir=/w ')}\n")
    for command in (f"srun {pyxis}bash -c 'cd /w && python t.py'", f"srun {pyxis}python /a/t.py --model meta/llama", "srun apptainer exec -B $HOME i.sif ./a"):
        assert containers.IN_IMAGES_FOLDER not in remarks(f"{command}\n")


def test_a_program_that_srun_finds_in_its_folder_has_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/launch.sh").touch()
    monkeypatch.chdir(tmp_path)
    assert keys("cd sub\nsrun launch.sh --x 1\n")["command"] == "./launch.sh --x 1"
    for body in ("srun launch.sh --x 1\n", "cd sub\nlaunch.sh --x 1\n", "cd sub\nsrun bash -c 'launch.sh --x 1'\n"):
        assert keys(body)["command"] == "launch.sh --x 1"


@pytest.mark.parametrize("line", ["hf download a/b", "huggingface-cli download a/b", "wget http://x", "git clone x", "pip install x"])
def test_a_download_is_not_taken_for_the_program(line: str) -> None:
    made = keys(f"{line}\noumi distributed torchrun -m oumi.train\n")
    assert (made["command"], made["host_setup"]) == ("oumi distributed torchrun -m oumi.train", f"{line}\n")


def test_of_unknown_commands_one_that_names_a_launcher_is_the_program() -> None:
    assert job("oumi env\noumi distributed torchrun -m oumi.train\n")["command"] == "oumi distributed torchrun -m oumi.train"
    assert job("oumi env\noumi train\n")["command"] == "oumi env"


# ---------------------------------------------------------------- the first node, and its tasks


@pytest.mark.parametrize("lines", ["export LEAD={}", "LEAD={}\nexport LEAD", "declare -x LEAD={}"])
def test_the_first_node_in_an_exported_variable_of_another_name_reaches_the_program(lines: str) -> None:
    node = "$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)"
    made = keys(f"{lines.format(node)}\nsrun bash run.sh\n")
    assert (made["setup"], made.get("host_setup")) == ('export LEAD="${MASTER_ADDR}"\n', None)
    made = keys(f"{lines.format(node)}\nmkdir logs-$LEAD\nsrun bash run.sh\n")
    assert made["setup"] == 'export LEAD="${MASTER_ADDR}"\n' and "scontrol" in made["host_setup"]
    assert "setup" not in keys(f"LEAD={node}\nsrun torchrun --rdzv_endpoint=$LEAD:1 t.py\n")


def test_the_port_in_an_exported_variable_of_another_name_reaches_the_program() -> None:
    assert keys("export PORT=$(shuf -i 2-9 -n 1)\nsrun bash run.sh\n")["setup"] == 'export PORT="${MASTER_PORT}"\n'


@pytest.mark.parametrize("tasks", ["$SLURM_TASKS_PER_NODE | cut -d '(' -f 1", '"${SLURM_TASKS_PER_NODE}" | cut -f1 -d\\('])
def test_the_number_of_tasks_that_is_cut_from_slurms_is_known(tasks: str) -> None:
    header, lines = "#SBATCH -N 2 --ntasks-per-node=4\n", f"N=$(echo {tasks})\nT=$((SLURM_NNODES * N))\n"
    made = keys(f"{header}{lines}mpirun -np $T --npernode $N -x N=$N python t.py\n")
    assert (made["processes_per_node"], made["setup"]) == ("4", "export N=$SLURM_NTASKS_PER_NODE\n")
    assert keys(f"{header}{lines}mpirun -np $T python t.py\n")["processes_per_node"] == "4"
    assert "write the ranks of each node: `processes_per_node`" in questions(f"#SBATCH -N 2\n{lines}mpirun -np $T python t.py\n")


def test_what_each_task_computes_itself_stays_its_own() -> None:
    start = "#SBATCH -N 2 -n 4\nsrun bash -c "
    assert keys(f"{start}'R=$(hostname); D=$(date); python t.py $R $D'\n")["script"] == "R=$(hostname)\nD=$(date)\npython t.py $R $D\n"
    assert keys(f"{start}'export R=$(hostname) && python t.py'\n")["setup"] == "export R=$(hostname)\n"
    node = "$(scontrol show hostnames | head -n 1)"
    assert keys(f"{start}'export MASTER_ADDR={node} LEAD={node}; python t.py'\n")["setup"] == 'export LEAD="${MASTER_ADDR}"\n'
