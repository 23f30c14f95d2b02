"""Matrix products and convolutions whose operands and sums are rounded to formats."""
