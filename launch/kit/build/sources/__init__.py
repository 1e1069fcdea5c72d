"""Where images come from that are there already: registries, archives, engines, files. find.py tells them apart."""
