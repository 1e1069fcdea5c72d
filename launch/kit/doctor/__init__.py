"""kit doctor: what would keep a job from starting or running well is found, node by node, before it is submitted.

`visit` asks the login node and the compute nodes, `facts` is what they answered, `checks` judges it, `report` shows it.
"""
