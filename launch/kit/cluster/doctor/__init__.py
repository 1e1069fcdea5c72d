"""Find what would keep a job from starting or running well, node by node (`kit doctor`).

rounds.py asks the login node and the compute nodes, inquiry.py holds their answers, checks.py
judges them by the texts of checks.yaml, and cli/examination.py shows the result.
"""
