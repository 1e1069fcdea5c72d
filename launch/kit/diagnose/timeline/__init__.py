"""Show where the time of a run's start went (`kit timeline`)."""
