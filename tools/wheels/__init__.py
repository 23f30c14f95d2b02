"""`make wheels`: a wheel for each version of Python and each minor version of torch.

    python -m tools.wheels --python python3.11 --torch 2.13.0 --mpicc A/mpicc:B/mpicc

names: what a wheel is called and requires; tree: the copy that it is built from; environment: the
packages that build it; repair: its platform, and what has to be in it.
"""
