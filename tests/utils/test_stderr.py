"""Notices that cannot be shown, or that a program turns into errors: the training goes on."""

from __future__ import annotations

import ast
import contextlib
import gzip
import io
import logging
import os
import socket
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import torch_cgx
from cgx_utils import AdaptiveBits, CGXState, DiLoCo, Monitor, fsdp
from tests.distributed import ROOT, run_pooled
from tests.utils.training import batch, loss_of, make_model, wrap
from torch_cgx import _warnings


def _broken_pipe():
    ours, theirs = os.pipe()
    os.close(ours)
    return open(theirs, "w")


def _closed():
    stream = open(os.devnull, "w")
    stream.close()
    return stream


class _Raises:
    def write(self, text):
        raise RuntimeError("a stream of the program's own")

    flush = write


STREAMS = {
    "none": lambda: None,
    "closed": _closed,
    "nobody reads": _broken_pipe,
    "full": lambda: open("/dev/full", "w"),
    "without flush": lambda: type("Log", (), {"write": lambda self, text: None})(),
    "raises": _Raises,
    "number": lambda: 3,
}


class _Handler(logging.Handler):
    def emit(self, record):
        raise OSError("no space left")


@contextlib.contextmanager
def _logging_that_raises():
    logger, handler = logging.getLogger("py.warnings"), _Handler()
    logger.addHandler(handler)
    logging.captureWarnings(True)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        logger.removeHandler(handler)


@contextlib.contextmanager
def _errors():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


WARNINGS = {
    "shown": lambda: contextlib.nullcontext(),
    "errors": _errors,
    "logging": _logging_that_raises,
}


def _hook(rank):
    """A line on what is compressed, one on each decision, the Monitor's; patterns without use."""
    adaptive = AdaptiveBits(average_bits=3, candidates=(2, 4), every=1)
    params = {"bits": 4, "bucket_size": 64}
    options = {"overrides": {"no such name": {"bits": 2}}, "error_feedback": True}
    state = CGXState(config=params, adaptive=adaptive, **options)
    model = wrap(make_model(), state)
    with Monitor(model, every=1):
        for step in range(4):
            model.zero_grad()
            loss_of(model, batch(rank, step)).backward()
    assert state.report().rows
    return len(state._decisions.bits)


def _exact(rank):
    """Warnings: nothing is compressed, a number of bits that means exact, sparse gradients."""
    os.environ["CGX_COMPRESSION_QUANTIZATION_BITS"] = "12"
    try:
        model = wrap(make_model(), CGXState())
        loss_of(model, batch(rank, 0)).backward()
    finally:
        del os.environ["CGX_COMPRESSION_QUANTIZATION_BITS"]
    import cgx_utils.hook as hook
    from torch_cgx import _config

    _config._warn_once_of_variable.cache_clear()
    hook._warned_of_sparse = False
    words = wrap(nn.Embedding(100, 64, sparse=True), CGXState())
    words(torch.tensor([rank, 3])).sum().backward()
    return hook._warned_of_sparse


def _diloco(rank):
    """A line; a warning for a mean that is not finite."""
    model = make_model()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    diloco = DiLoCo(model, inner, every=1, config={"bits": 4}, nonfinite="skip")
    for step in range(2):
        loss_of(model, batch(rank, step)).backward()
        if step == 1:
            next(model.parameters()).grad.fill_(torch.inf)
        inner.step()
        diloco.step()
    return diloco.rounds


def _fsdp(rank):
    """Lines; warnings: nothing is compressed, a pattern without use."""
    for options in ({}, {"layer_filter": "no such name"}):
        model = make_model()
        fully_shard(model, mesh=dist.init_device_mesh("cpu", (dist.get_world_size(),)))
        fsdp.compress(model, {"bits": 4}, {"bits": 8}, **options)
        loss_of(model, batch(rank, 0)).backward()
    return True


def _group(rank):
    """The engine's own warning of a small value; a group with unknown variables."""
    options = torch_cgx.Options(bits=4)
    group = dist.new_group(backend="cgx", pg_options=options)
    dist.all_reduce(torch.ones(100), group=group)
    return True


JOBS = (_hook, _exact, _diloco, _fsdp, _group)


def _train(rank, world_size, cases):
    found = {}
    for stream, shown in cases:
        kept = sys.stderr
        with WARNINGS[shown]():
            sys.stderr = STREAMS[stream]()
            try:
                found[stream, shown] = [job(rank) for job in JOBS]
            finally:
                sys.stderr = kept
    return found


@pytest.mark.parametrize(
    "cases",
    [
        [(stream, "shown") for stream in STREAMS],
        [("none", "errors"), ("full", "errors"), ("closed", "logging"), ("full", "logging")],
    ],
    ids=["streams", "warnings"],
)
def test_training_goes_on_where_nothing_can_be_said(cases):
    for found in run_pooled(_train, 2, cases, timeout=120):
        assert set(found) == set(cases)
        assert all(answers == [2, True, 2, True, True] for answers in found.values())


def test_a_line_does_not_change_the_exit_status():
    # What cannot be written must not stay in a buffer, which Python writes again at exit.
    code = (
        "import sys; sys.stderr = open('/dev/full', 'w')\n"
        "from torch_cgx import _warnings; _warnings.say('a', 'b'); print('end')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "end\n")


def test_lines_reach_streams_of_every_kind(tmp_path, monkeypatch):
    packed, plain = tmp_path / "log.gz", tmp_path / "log"
    for open_, path in ((gzip.open, packed), (open, plain)):
        with open_(path, "wt") as stream:
            monkeypatch.setattr(sys, "stderr", stream)
            stream.write("before\n")
            _warnings.say("one", "two \N{GREEK SMALL LETTER BETA}")
            stream.write("after\n")
        with open_(path, "rt") as stream:
            wanted = "before\ncgx: one\ncgx: two \N{GREEK SMALL LETTER BETA}\nafter\n"
            assert stream.read() == wanted
    for stream in (io.StringIO(), io.TextIOWrapper(io.BytesIO(), "ascii", "backslashreplace")):
        monkeypatch.setattr(sys, "stderr", stream)
        _warnings.say("x \N{GREEK SMALL LETTER BETA}")
        stream.seek(0)
        assert stream.read().startswith("cgx: x ")


def test_a_warning_that_is_an_error_is_a_line(capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _warnings.warn("one")
        with pytest.raises(UserWarning, match="two"):
            _warnings.warn_of_argument("two")
        with pytest.raises(UserWarning, match="bits=9 means exact"):
            CGXState(config={"bits": 9})
    assert capsys.readouterr().err == "cgx: warning: one\n"


def _descriptor_two(rank, world_size):
    """A program closes stderr, and a socket gets its number."""
    kept = os.dup(2)
    os.close(2)
    try:
        ours, theirs = socket.socketpair()
        assert ours.fileno() == 2
        os.set_inheritable(2, rank == 0)  # as sockets of C++ code are
        theirs.setblocking(False)
        os.environ["CGX_LOG"] = "debug"
        group = dist.new_group(backend="cgx")
        dist.all_reduce(torch.ones(1000), group=group)
        with pytest.raises(BlockingIOError):
            theirs.recv(1)
        theirs.close()
        ours.close()
    finally:
        os.dup2(kept, 2)
        os.close(kept)
    return True


def test_lines_of_the_engine_stay_out_of_files_that_got_the_number_of_stderr():
    assert run_pooled(_descriptor_two, 2) == [True, True]


_ALONE = """
import os, torch, torch.distributed as dist
kept = os.open(os.devnull, os.O_RDWR)  # number 2: as the first file that a library opens
os.set_inheritable(kept, True)
file = os.open("FILE", os.O_RDWR | os.O_CREAT)
os.dup2(file, kept)
dist.init_process_group("cgx", init_method="file://STORE", rank=0, world_size=1)
from cgx_utils import CGXState, cgx_hook
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
model.register_comm_hook(CGXState(), cgx_hook)
model(torch.ones(1, 64)).sum().backward()
print(kept, model.module.weight.grad.sum().item(), os.path.getsize("FILE"))
del model
dist.destroy_process_group()
"""


def test_a_process_without_stderr_trains(tmp_path):
    code = _ALONE.replace("FILE", str(tmp_path / "file")).replace("STORE", str(tmp_path / "store"))
    command = ["sh", "-c", 'exec "$0" -c "$1" 2>&-', sys.executable, code]
    env = {**os.environ, "CGX_LOG": "debug", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "2 4096.0 0\n")


def _places():
    """(file, line) where the packages write on stderr or warn by themselves."""
    for folder in ("torch_cgx", "cgx_utils"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if name.startswith(
                ("torch_cgx/cli/", "torch_cgx/launch/", "torch_cgx/testbed/watchdog")
            ):
                continue  # commands, and a program of its own: they print
            for node in ast.walk(ast.parse(path.read_text())):
                text = ast.unparse(node) if isinstance(node, (ast.Attribute, ast.Call)) else ""
                if text in ("warnings.warn", "sys.stderr") or text.startswith("print("):
                    yield name, node.lineno


def test_one_module_speaks():
    assert {name for name, _ in _places()} == {"torch_cgx/_warnings.py"}
    found = [
        path for path in Path(ROOT / "csrc").rglob("*.cc") if "STDERR_FILENO" in path.read_text()
    ]
    assert [path.name for path in found] == ["log.cc"]
    for path in [*Path(ROOT / "csrc").rglob("*.cc"), *Path(ROOT / "csrc").rglob("*.h")]:
        text = path.read_text()
        for word in ("TORCH_WARN", "std::cerr", "fprintf(stderr", "perror("):
            assert word not in text, path
