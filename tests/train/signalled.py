"""A program that runs another as it is, but for a signal that one rank sends itself in one of its steps."""

PROGRAM = """
import os, runpy, signal, sys
import torch.nn.functional as F
calls, cross_entropy = 0, F.cross_entropy
def send(*args, **kwargs):
    global calls
    calls += 1
    if os.environ["RANK"] == "{rank}" and calls == {step}:
        os.kill(os.getpid(), signal.{signal})
    return cross_entropy(*args, **kwargs)
F.cross_entropy = send
sys.argv = sys.argv[1:]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def in_step(step: int, rank: int, signal: str) -> str:
    """Steps are counted from 1, by the losses that the program computes."""
    return PROGRAM.format(step=step, rank=rank, signal=signal)
