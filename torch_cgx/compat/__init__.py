"""The public functions of systems that torch_cgx succeeds, under their names and in their formats.

    from torch_cgx.compat import cuda_float_compress

is for programs and files that were written for such a system: one import changes, payloads of
either side are read by the other. The text and code are torch_cgx's own. What a system got wrong is
right here where its format allows, and each module lists that. New programs find more in
`torch_cgx` itself.
"""
