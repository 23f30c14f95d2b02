"""Linear layers that keep a sample or a random projection of their input for backward."""
