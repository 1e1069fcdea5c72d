"""What `import kit` offers, and what the command line calls."""
