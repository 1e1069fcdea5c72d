"""Starts a module as `python -m MODULE ARGS...` does, from the run's snapshot: -m itself would look
into the working directory first."""

import os
import runpy
import sys

here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [os.environ["KIT_CODE"], *(folder for folder in sys.path if folder != here)]
del sys.argv[0]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
