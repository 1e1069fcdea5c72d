"""What kit does with files: read strangers' files, remove kit's own, lock, remember digests."""
