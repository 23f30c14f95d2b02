"""Replacing modules of a model by ones that keep less."""
