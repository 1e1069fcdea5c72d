"""kit on a laptop: the cluster's login node by the system's ssh, run directories by rsync. docs/laptop.md says how it behaves."""
