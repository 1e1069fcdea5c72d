"""`kit bench`: measure what a cluster's network reaches."""
