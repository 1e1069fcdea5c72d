"""What looks at runs: where they are, how they stand, what they printed, and how to repeat them."""
