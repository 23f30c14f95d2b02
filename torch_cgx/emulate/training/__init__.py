"""Formats in models and their training: recipes, and what `apply` changes."""
