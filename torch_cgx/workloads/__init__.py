"""Small trainings that a wheel brings along: a GPT on text, a convnet on handwritten digits.

The examples, the benchmarks and `cgx emulate compare` train them. Nothing is downloaded.
"""
