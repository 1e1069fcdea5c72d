"""Show where the ranks of a running run are (`kit hang`)."""
