"""The tools that build an image from a recipe: one module each, listed in choose.py."""
