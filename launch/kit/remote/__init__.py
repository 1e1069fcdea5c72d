"""kit on a laptop: runs commands on a cluster's login node, by the system's ssh and rsync.

docs/laptop.md says how it behaves.
"""
