"""Which parameters of a model are compressed: their names and the rules that select them. For
cgx_utils and the command line."""
