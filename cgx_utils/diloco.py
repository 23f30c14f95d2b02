"""DiLoCo: local steps on every rank, then one compressed all-reduce of what they have changed.

A. Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", 2023,
arXiv:2311.08105, algorithm 1. In place of their exact mean of the outer gradients, this one is
quantized, with error feedback.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist

import torch_cgx
from cgx_utils import error_feedback as feedback
from cgx_utils.agreement import compare, digest
from cgx_utils.diloco_arguments import check_arguments, check_outer, trained_parameters
from cgx_utils.diloco_state import SavedDiLoCo, outer_state
from cgx_utils.local import check_local
from cgx_utils.resharding import share_of, with_rank
from cgx_utils.state import CGXState
from torch_cgx import _steps
from torch_cgx._policy.names import named_of
from torch_cgx._renamed import takes_old_names
from torch_cgx._warnings import warn

_BUCKET = 1 << 24  # values of an all-reduce, 64 MiB


class DiLoCo:
    """Trains locally, and every `every` steps of the inner optimizer brings the ranks together.

        outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
        with DiLoCo(model, inner, outer, every=100, config={"bits": 4}):
            for batch in data:
                ...
                inner.step()  # the hundredth one ends with the outer step

    As torchft's classes, it is a context manager that hooks `inner.step()`. Without the `with`,
    call `step()` after each inner step. A loop whose GradScaler may skip steps on single ranks has
    to do that, so that all ranks count alike.

    The outer step: every parameter's change since the last one, start - now, is averaged over the
    ranks, by an all-reduce of one flat fp32 bucket (several above 2^24 values). Parameters go back
    to `start`, the mean becomes their gradient, and `outer.step()` is taken. Afterwards all ranks
    have the same parameters, bit for bit. Gradients are as they were before. `error_feedback` adds
    what a rank's encodings left out to its next change.

    model: its parameters that require gradients take part: plain tensors (no DTensors) of fp32,
        fp16 or bf16, on one device. Not in DistributedDataParallel, which averages the gradients
        of every step, unless over ranks that are not in this group. Parameters and buffers are
        broadcast from rank 0 of the group when the DiLoCo is made. Buffers (BatchNorm's statistics)
        are each rank's own from then on; broadcast or average them before an evaluation that is to
        be the same everywhere.
    inner: the optimizer of the local steps. outer: a torch optimizer that has all these parameters;
        None: SGD(lr=0.7, momentum=0.9, nesterov=True), the paper's.
    every: inner steps per outer step, >= 1.
    config, min_size, layer_filter, overrides: as in `CGXState`: by default 4 bits for parameters of
        more than one dimension and 1024 values, all others exact, in the same message.
    error_feedback: one residual of fp32 for each parameter, on every rank (docs/numerics.md, Error
        feedback). ValueError with maxmin at 1 bit.
    nonfinite: what happens when the mean has a NaN or an infinity, on all ranks alike. "raise":
        torch_cgx.NonFiniteError; "skip": a warning. Both leave the parameters at the start of the
        round, and residuals and outer optimizer as they were.

    Collective: made, stepped and ended by all ranks of the group. ValueError and TypeError name bad
    arguments; torch_cgx.MismatchError, on all ranks, says which ranks were given another model,
    `every` or configuration. A CgxError out of a step leaves parameters as the inner steps made
    them. Not thread-safe.
    """

    @takes_old_names("DiLoCo", group="process_group", min_size="layer_min_size")
    def __init__(
        self,
        model: torch.nn.Module,
        inner: torch.optim.Optimizer,
        outer: torch.optim.Optimizer | None = None,
        *,
        every: int,
        config: Mapping[str, Any] | None = None,
        group: dist.ProcessGroup | None = None,
        min_size: int = 1024,
        layer_filter: Any = None,
        overrides: Mapping[str, Mapping[str, Any]] | None = None,
        error_feedback: bool = True,
        nonfinite: str = "raise",
    ):
        from torch_cgx._backend import backend_of

        check_arguments(model, inner, outer, every, error_feedback, nonfinite)
        self.every = every
        self._named = trained_parameters(model)
        parameters: list[torch.Tensor] = list(self._named.values())
        if outer is None:
            outer = torch.optim.SGD(parameters, lr=0.7, momentum=0.9, nesterov=True)
        check_outer(outer, self._named)
        self.inner, self.outer = inner, outer
        self._group = group
        self._backend = backend_of(group, parameters[0].device)
        check_local(model, parameters, group)
        self._state = CGXState(
            group,
            min_size,
            config,
            layer_filter=layer_filter,
            overrides=overrides,
            named_parameters=model,
        )
        self._steps = _steps.StepCounter("this DiLoCo")  # its step is the round
        self._model = named_of(model)
        self._buckets = _buckets(parameters)
        plans = [self._state.plan(bucket, self._backend) for bucket in self._buckets]
        if error_feedback:
            for codec in {codec for plan in plans for _, codec in plan if codec is not None}:
                feedback.check_codec(codec)
        self._nonfinite = nonfinite
        self._local_steps = self._rounds = 0
        self._handle: Any = None
        shapes = [(name, tuple(p.shape), str(p.dtype)) for name, p in self._named.items()]
        codecs = [(n, c and c.describe()) for plan in plans for n, c in plan]
        rules = {"every": every, "error_feedback": error_feedback, "nonfinite": nonfinite}
        compare({"model": shapes, "configuration": codecs, **rules}, group)
        for tensor in [*model.parameters(), *model.buffers()]:
            dist.broadcast(tensor.detach(), group=group, group_src=0)
        with torch.inference_mode(False):  # also where the caller has it on: they will be written
            self._start = [p.detach().clone() for p in parameters]
        self._compares_start = True  # at the next outer step: a rank may have loaded a state
        self._residuals: list[torch.Tensor] | None = None
        if error_feedback:
            with torch.inference_mode(False):
                self._residuals = [
                    torch.zeros(_numel(bucket), dtype=torch.float32, device=bucket[0].device)
                    for bucket in self._buckets
                ]

    @property
    def local_steps(self) -> int:
        """Inner steps since the last outer one."""
        return self._local_steps

    @property
    def rounds(self) -> int:
        """Outer steps so far, skipped ones included."""
        return self._rounds

    def __enter__(self) -> DiLoCo:
        if self._handle is not None:
            raise RuntimeError("this DiLoCo is in use by another `with` already")
        self._handle = self.inner.register_step_post_hook(lambda *_: self.step())
        return self

    def __exit__(self, *_: object) -> None:
        """Local steps since the last outer one stay local, unless `sync()` was called."""
        self._handle.remove()
        self._handle = None

    def step(self) -> None:
        """Counts an inner step; every `every`-th call is an outer step."""
        self._local_steps += 1
        if self._local_steps >= self.every:
            self.sync()

    @torch.inference_mode(False)
    @torch.no_grad()
    def sync(self) -> None:
        """An outer step now, whatever the number of local steps."""
        if self._compares_start:
            state = {"rounds": self._rounds, "start of the round": digest(self._start)}
            compare(state, self._group)
            self._compares_start = False
        means, residuals, bad = self._reduce()
        for parameter, value in zip(self._parameters, self._start, strict=True):
            parameter.detach().copy_(value)
        self._local_steps = 0
        self._rounds += 1
        if bad:
            self._refuse(bad)
            return
        if self._residuals is not None:
            self._residuals = residuals
        self._outer_step(means)
        group = self._group or dist.distributed_c10d._get_default_group()
        self._state.end_step(self._backend, group)

    def _reduce(self) -> tuple[list[torch.Tensor], list[torch.Tensor], list[str]]:
        """The mean changes, the residuals that they leave, and the names of parameters whose mean
        is not finite: all of a bucket where the group raises NonFiniteError.
        """
        start, names = iter(self._start), iter(self._named)
        means: list[torch.Tensor] = []
        residuals: list[torch.Tensor] = []
        bad: list[str] = []
        for number, bucket in enumerate(self._buckets):
            changes = [next(start).float() - p.detach().float() for p in bucket]
            flat = torch.cat([change.reshape(-1) for change in changes])
            del changes
            left = None if self._residuals is None else self._residuals[number].clone()
            ours = [next(names) for _ in bucket]
            try:
                self._mean(flat, bucket, left)
            except torch_cgx.NonFiniteError:  # on all ranks alike, and the group goes on
                bad += ours
                continue
            averaged = zip(ours, flat.split([p.numel() for p in bucket]), strict=True)
            bad += [name for name, mean in averaged if not bool(mean.isfinite().all())]
            means.append(flat)
            if left is not None:
                residuals.append(left)
        return means, residuals, bad

    def _mean(
        self, flat: torch.Tensor, bucket: list[torch.Tensor], residual: torch.Tensor | None
    ) -> None:
        """Averages the changes of a bucket over the ranks, in place. The round keys random numbers,
        so that a resumed training draws what it would have drawn.
        """
        layers, firsts = self._state.layers(bucket, self._backend)
        self._backend.all_reduce_layers(
            flat,
            dist.ReduceOp.AVG,
            layers,
            False,
            residual=residual,
            step=self._rounds,
            tensor_number=self._steps.tensor_number(self._backend),
            firsts=firsts,
        ).wait()

    @property
    def _parameters(self) -> Iterable[torch.nn.Parameter]:
        return self._named.values()

    def _outer_step(self, means: list[torch.Tensor]) -> None:
        kept = [p.grad for p in self._parameters]
        for parameter, mean in zip(self._parameters, self._split(means), strict=True):
            parameter.grad = mean.view(parameter.shape).to(parameter.dtype)
        try:
            self.outer.step()
        finally:
            for parameter, gradient in zip(self._parameters, kept, strict=True):
                parameter.grad = gradient
        for parameter, value in zip(self._parameters, self._start, strict=True):
            value.copy_(parameter.detach())

    def _refuse(self, bad: list[str]) -> None:
        text = (
            f"DiLoCo: the mean change of round {self._rounds} is not finite in {len(bad)} of "
            f"{len(self._named)} parameters ({bad[0]!r} first): all parameters are back at the "
            "start of the round. A rank's inner optimizer may hold NaNs: lower its learning rate, "
            "clip gradients, and make its state anew"
        )
        if self._nonfinite == "raise":
            raise torch_cgx.NonFiniteError(text)
        warn(text)

    def _split(self, flats: list[torch.Tensor]) -> list[torch.Tensor]:
        """Flat buckets as one flat tensor for each parameter."""
        return [
            one
            for bucket, flat in zip(self._buckets, flats, strict=True)
            for one in flat.split([p.numel() for p in bucket])
        ]

    def state_dict(self) -> dict[str, Any]:
        """Start parameters, state of the outer optimizer, residuals and counts. The residuals are
        this rank's own: each rank saves its own, beside model and inner optimizer.

        "start" {name: tensor}, "outer", "outer_stepped" (whether it has made a step), "residuals"
        {name: flat fp32 tensor} or None, "local_steps", "rounds", "number" (of this DiLoCo on its
        group; with the rounds it keys random numbers), "rank", "world_size", and "ranks" {rank:
        residuals}, the same tensors, for torch.distributed.checkpoint.
        """
        residuals = None
        if self._residuals is not None:
            copies = [one.to("cpu", copy=True) for one in self._split(self._residuals)]
            residuals = dict(zip(self._named, copies, strict=True))
        self._steps.tensor_number(self._backend)  # chooses a number, where none is known
        state = {
            "start": dict(zip(self._named, [s.clone() for s in self._start], strict=True)),
            "outer": outer_state(self.outer),
            "outer_stepped": bool(self.outer.state),
            "residuals": residuals,
            "local_steps": self._local_steps,
            "rounds": self._rounds,
            "number": self._steps.number,
            "rank": self._backend.rank(),
            "world_size": self._backend.size(),
        }
        return with_rank(state, self._backend.rank(), ["residuals"])

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from a `state_dict()`, after model and inner optimizer have been loaded.

        The residuals of another rank are dropped, with a warning that names the ranks; those of
        another number of ranks, too, unless the state has all that this rank takes over
        (docs/checkpoints.md). Names may have other wrappers, or be other names of tied parameters.
        The next outer step first compares the ranks' start parameters. ValueError for a state of
        another model, before anything is changed.
        """
        saved = SavedDiLoCo.of(state, self._named, self._model)
        saved.load_outer(self.outer)
        for value, name in zip(self._start, self._named, strict=True):
            value.copy_(saved.start[name])
        self._load_residuals(saved)
        self._local_steps, self._rounds = saved.local_steps, saved.rounds
        if saved.number is not None:
            self._steps.load_state_dict({"step": 0, "number": saved.number})
        self._compares_start = True

    def _load_residuals(self, saved: SavedDiLoCo) -> None:
        if self._residuals is None:
            return
        own: dict[str, torch.Tensor] = {}
        if saved.residuals:
            rank, ranks = self._backend.rank(), self._backend.size()
            own = share_of(saved.residuals, saved.ranks, rank, ranks, "DiLoCo", partly=False)
        for residual, name in zip(self._split(self._residuals), self._named, strict=True):
            if name in own:
                residual.copy_(own[name])
            else:
                residual.zero_()


def _numel(bucket: list[torch.Tensor]) -> int:
    return sum(p.numel() for p in bucket)


def _buckets(parameters: list[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Neighbouring parameters of at most _BUCKET values, or a single longer one."""
    found: list[list[torch.Tensor]] = [[]]
    for parameter in parameters:
        if found[-1] and _numel(found[-1]) + parameter.numel() > _BUCKET:
            found.append([])
        found[-1].append(parameter)
    return found
