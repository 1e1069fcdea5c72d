"""What builds an image of a recipe: one module for each tool, listed in known.py."""
