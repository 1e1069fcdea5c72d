"""From a job and its site to a plan, and from a plan to the files of a run directory."""
