"""`kit build`: make one file that every runtime takes, from a recipe or an existing image."""
