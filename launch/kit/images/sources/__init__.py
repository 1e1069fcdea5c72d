"""Existing images: in registries, archives, engines and files. find.py tells them apart."""
