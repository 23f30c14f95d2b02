"""Which parameters of a model are compressed, and what each gets: their names, the rules that
select them, and the division of a budget. For cgx_utils and the command line.
"""
