"""What was asked of torch_cgx.activations."""

from __future__ import annotations

from benchmarks.report import activations, pareto, projections
from benchmarks.report.target import Target


def of_projections() -> list[Target]:
    against = "step of RoBERTa-base, batch 128"
    found = [
        Target(f"{method}, bytes saved", against, asked, projections.saving(method), unit=" %")
        for method, asked in (
            ("3-bit GELU", 13.8),
            ("linear 0.2", 18.6),
            ("3-bit GELU, linear 0.2", 32.7),
        )
    ]
    found.append(
        Target("step, rows at 0.2, slowest", "plain torch", 0.9, projections.step("rows 0.2"), True)
    )
    return found + [
        Target(
            "squared error, wta at 0.2",
            f"{other}, recorded activations",
            1,
            projections.squared_error("wta", name),
            True,
        )
        for other, name in (("uniform rows", "rows"), ("Gaussian projection", "gaussian"))
    ]


def of_frontier() -> list[Target]:
    fit = "plans of activations.fit"
    return [
        Target(
            f"{fit}, 5 to 50 % of the bytes, dominated in bytes, time and error",
            "all eager rows of the frontier",
            0,
            pareto.off_frontier("fit"),
            True,
        ),
        Target(
            f"{fit}, error of the gradient, the worst",
            "the best other eager row within the same bytes and time",
            1,
            pareto.fit_error,
            True,
        ),
        Target(
            f"{fit}, bytes, the most",
            "their budget",
            1.01,
            pareto.fit_over("share", "budget"),
            True,
        ),
        Target(
            f"{fit}, time of a step, the longest",
            "their limit",
            1.02,
            pareto.fit_over("time", "limit"),
            True,
        ),
    ]


def bytes_and_steps() -> list[Target]:
    saving = "of plain torch, masks of bytes"
    few, free = "3-bit functions", "keep less, 3-bit functions"
    found = [
        Target(
            f"{model}, {what}, batch {batch}, bytes saved",
            saving,
            asked,
            activations.kept(model, method, "saving_byte_masks", batch=batch),
        )
        for model, act in (("BERT", "3-bit GELU"), ("Llama", "3-bit SiLU"))
        for what, method, asked in ((act, few, 0.17), (free, free, 0.31))
        for batch in (8, 32)
    ]
    found += [
        Target(
            f"{model}, saved tensors at {bits} bits {what}, {dtype}",
            "bytes of plain torch",
            asked,
            activations.kept(model, method.format(bits), "factor", dtype),
            unit="x",
        )
        for what, method in (("and all else", "all, saved {} bits"), ("alone", "saved, {} bits"))
        for model in ("BERT", "Llama")
        for dtype, bits, asked in (
            ("float32", 4, 8),
            ("float32", 2, 13),
            ("bfloat16", 4, 4.5),
            ("bfloat16", 2, 7),
        )
    ]
    found += [
        Target(f"step, {method}, slowest", "plain torch", asked, activations.slowest(method), True)
        for method, asked in ((few, 1.03), ("keep less", 1.0), ("saved, 4 bits", 1.06))
    ]
    found += [
        Target(
            f"3-bit GELU, 64 MiB, {threads} thread{'s' * (threads > 1)}",
            "torch's GELU",
            1,
            activations.function("gelu", threads),
            True,
            "x",
        )
        for threads in (1, 2)
    ]
    return found
