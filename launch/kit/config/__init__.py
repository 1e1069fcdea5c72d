"""What people write: job files, cluster profiles, options; each value with its file and line."""
