"""
Train a small GPT-2 with Hugging Face's Trainer. Killed at any moment, it goes on from its newest checkpoint.

    python train.py --epochs 2                        one process
    kit run job.yaml                                  two "nodes" of two ranks on this machine
    kit submit job.yaml --image my.sif                on the cluster

It learns to write its own source code, byte by byte, so there is nothing to download. Asked by SIGUSR1 or SIGTERM, it
writes a checkpoint after the step at hand and ends with code 75: `kit` then starts it again. Needs transformers;
written for 5.24.
"""

import argparse
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from accelerate.utils import broadcast_object_list
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

GO_ON = 75  # the exit code that asks to be started again


class StopWhenAsked(TrainerCallback):
    """What kit and a program agree on, as docs/preemption.md says it."""

    def __init__(self, pause_s):
        self.pause_s, self.asked, self.stopped = pause_s, [], False
        for number in (signal.SIGUSR1, signal.SIGTERM):
            signal.signal(number, lambda number, frame: self.asked.append(number))

    def on_step_end(self, args, state, control, **kwargs):
        time.sleep(self.pause_s)
        stop = torch.tensor(float(bool(self.asked)), device=args.device)
        if args.world_size > 1:
            dist.all_reduce(stop, dist.ReduceOp.MAX)  # all ranks stop at the same step
        if stop:
            self.stopped = control.should_save = control.should_training_stop = True

    def on_save(self, args, state, control, **kwargs):
        if state.is_world_process_zero and "KIT_PROGRESS" in os.environ:
            Path(os.environ["KIT_PROGRESS"]).write_text(f"step {state.global_step}\n")

    def on_log(self, args, state, control, logs, **kwargs):
        if state.is_world_process_zero and "loss" in logs:
            print(f"step {state.global_step}  loss {logs['loss']}", flush=True)


def newest(folder):
    """Returns the newest complete checkpoint, or None. Rank 0 writes trainer_state.json last."""
    found = (file.parent for file in folder.glob("checkpoint-*/trainer_state.json"))
    # Not a copy that somebody keeps beside them.
    steps = {int(path.name[11:]): path for path in found if path.name[11:].isdecimal()}
    return steps[max(steps)] if steps else None


def make_data(length=64):
    text = torch.frombuffer(bytearray(Path(__file__).read_bytes()), dtype=torch.uint8).long()
    windows = text.unfold(0, length, 4)  # one begins every four bytes
    return [{"input_ids": window, "labels": window} for window in windows]


def main():
    parser = argparse.ArgumentParser(description="A small GPT-2 with the Trainer")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=8, help="of each rank")
    parser.add_argument("--checkpoints", type=Path, default="checkpoints", metavar="FOLDER")
    parser.add_argument("--save-every", type=int, default=50, metavar="STEPS")
    parser.add_argument(
        "--pause",
        type=float,
        default=0,
        metavar="SECONDS",
        help="after each step: time to kill a rank",
    )
    args = parser.parse_args()

    stop = StopWhenAsked(args.pause)
    arguments = TrainingArguments(
        args.checkpoints,
        num_train_epochs=args.epochs,
        per_device_train_batch_size=args.batch_size,
        learning_rate=0.003,
        save_steps=args.save_every,
        save_total_limit=2,
        logging_steps=1,
        report_to=[],
        ddp_find_unused_parameters=False,
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
    )
    torch.manual_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=256,
            n_positions=64,
            n_embd=32,
            n_layer=2,
            n_head=2,
            bos_token_id=None,
            eos_token_id=None,
        )
    )
    trainer = Trainer(model, arguments, train_dataset=make_data(), callbacks=[stop])
    trainer.remove_callback(PrinterCallback)  # on_log above says the same, with the step
    # Rank 0 decides: a network file system may show a new folder late to some.
    (begin,) = broadcast_object_list([newest(args.checkpoints)])
    trainer.train(resume_from_checkpoint=begin)
    global last_barrier
    if dist.is_initialized():
        # On CPUs the last tensors are Gloo's threads' for a moment longer: see leave() in train/ranks.py.
        last_barrier = dist.barrier(async_op=True)
        last_barrier.wait()
        dist.destroy_process_group()
    sys.exit(GO_ON if stop.stopped else 0)


if __name__ == "__main__":
    main()
