"""What the results say: the tables of the pages, the targets, the guard against slower code."""
