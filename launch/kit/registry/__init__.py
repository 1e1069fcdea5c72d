"""Read container images from registries and archives. It knows nothing of jobs.

client.py opens an image in a registry, by transport.py (requests), credentials.py (logins) and
layer_cache.py (downloads to keep); oci.py opens one in an archive, by blobs.py. layers.py merges an
image's layers into one tree, by stream.py (decompression) and bounded_tar.py. Why it is kit's own:
docs/images.md.
"""
