"""`kit build`: from a recipe, or an image that is there already, to one file that every runtime takes."""
