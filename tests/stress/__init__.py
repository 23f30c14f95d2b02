"""Random groups, collectives, faults and restarts, with exact accounting: __main__.py."""
