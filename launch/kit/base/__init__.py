"""What all packages stand on: errors, output, formats, quoting. It knows nothing of jobs."""
