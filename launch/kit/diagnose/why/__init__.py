"""Explain from its run directory alone why a run failed (`kit why`).

blame.py finds the rank at fault, evidence.py reads the ends of the logs that matter, cause.py
defines a known cause, findings.py finds the words of known causes, verdict.py weighs what was
found, run_state.py tells how the run ended, and report.py says both in words; for two causes, such
as a node that failed, it names no rank.
"""
