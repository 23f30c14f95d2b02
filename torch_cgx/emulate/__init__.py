"""Emulation of formats of numbers: what a tensor would be in them."""
