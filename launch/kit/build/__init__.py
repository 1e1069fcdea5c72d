<<<<<<< HEAD
"""`kit build`: from a recipe, or an image that is there already, to one file that every runtime takes."""
=======
"""Turns a container image into one file, without a container engine."""
>>>>>>> layers
