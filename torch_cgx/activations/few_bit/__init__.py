"""Few-bit activation functions: the autograd function, its tables, modules."""
