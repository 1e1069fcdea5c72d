"""Why a run died: reads its run directory, and nothing else.

evidence.py reads the ends of the logs that matter; cause.py says what a known cause is; cluster.py, programs.py and
distributed.py are the tables of them; verdict.py weighs what was found; report.py prints it.
"""
