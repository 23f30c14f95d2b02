"""Random groups, collectives, faults and restarts with exact accounting; `python -m tests.stress`."""
