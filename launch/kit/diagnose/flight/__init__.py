"""Tell from the dumps of PyTorch's flight recorder which call did not end."""
