"""Norms, gates and dropout that keep less."""
