"""Error-bounded compressors: the methods, what they are measured on, and the measuring process."""
