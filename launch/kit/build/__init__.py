"""Turns a container image into one file, without a container engine."""
