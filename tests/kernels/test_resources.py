"""What compilers make of the kernels. Needs no GPU. `make kernels` does more: compiles to machine
code and compares registers, memory and spills with the table of docs/gpu.md.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.kernels import instructions, resources
from tests.kernels.resources import build

NVCC = resources.find_nvcc()
needs_nvcc = pytest.mark.skipif(NVCC is None, reason="there is no nvcc (the CUDA toolkit)")
HIPCC = shutil.which("hipcc")

SPILLS = """
#define CGX_KERNEL(name) extern "C" __global__ void name(float* x, int n)
CGX_KERNEL(cgx_spills) {
  float y[64];
  for (int i = 0; i < 64; ++i) y[i] = x[i];
  for (int i = 0; i < n; ++i) y[(i * 7) % 64] += y[i % 64];
  for (int i = 0; i < 64; ++i) x[i] = y[i];
}
"""
WARNS = """
#define CGX_KERNEL(name) extern "C" __global__ void name(float* x)
CGX_KERNEL(cgx_warns) {
  int unused;
  x[0] = 1;
}
"""


def names() -> set[str]:
    return resources.kernel_names((build.ROOT / "csrc/codec/gpu/codec.cu").read_text())


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build.write_source(tmp_path_factory.mktemp("kernels"))


@pytest.fixture(scope="module")
def unfused(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    changed = tmp_path_factory.mktemp("unfused") / "kernels.cu"
    changed.write_text(resources.without_fma(source.read_text()))
    return changed


# Of the smallest kernels: PTX as nvcc writes it.
PTX = """
.visible .entry cgx_encode(
  .param .u64 cgx_encode_param_0
)
.maxntid 256
{ fma.rn.f32 %f1, %f2, %f3, %f4; }
"""
UNFUSED = "mul.rn.f32 %f1; div.rn.f32 %f2; rcp.approx.ftz.f32 %f3; add.rn.f32 %f4;\n" * 20


def test_what_is_fused_is_found() -> None:
    found = resources.ptx_problems(PTX, UNFUSED, {"cgx_encode": 256})
    assert found == []
    for bad in ("fma.rn.f32", "mad.rn.f64", "div.full.f32", "ex2.approx.f32", "add.ftz.f32"):
        assert resources.ptx_problems(PTX, UNFUSED + bad, {"cgx_encode": 256}) != [], bad
    for expected in ({"cgx_encode": 128}, {}, {"cgx_encode": 256, "cgx_decode": 256}):
        (said,) = resources.ptx_problems(PTX, UNFUSED, expected)
        assert "threads of a block" in said
    plain = PTX.replace("fma.rn.f32", "add.rn.f32")
    assert resources.ptx_problems(plain, UNFUSED, {"cgx_encode": 256}) != []
    assert resources.ptx_problems(PTX, "add.rn.f32", {"cgx_encode": 256}) != []


def test_the_threads_of_every_kernel_are_known() -> None:
    source = (build.ROOT / "csrc/codec/gpu/codec.cu").read_text()
    threads = resources.expected_threads(source)
    assert set(threads) == names()
    assert threads["cgx_encode"] == 256 and threads["cgx_maxmin_decode_fp16"] == 128


@needs_nvcc
@pytest.mark.parametrize("text", [SPILLS, WARNS], ids=["local memory", "warning"])
def test_the_check_can_fail(tmp_path: Path, text: str) -> None:
    assert NVCC is not None
    bad = tmp_path / "bad.cu"
    bad.write_text(text)
    with pytest.raises(build.NvccError, match="failed:"):
        resources.compile_one(NVCC, bad)


def test_reports_of_ptxas_are_read() -> None:
    report = (
        "ptxas info    : Compiling entry function 'cgx_x' for 'sm_90'\n"
        "ptxas info    : Function properties for cgx_x\n"
        "    16 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads\n"
        "ptxas info    : Used 44 registers, used 1 barriers, 308 bytes smem, 408 bytes cmem[0]\n"
        "ptxas info    : Compiling entry function 'cgx_y' for 'sm_80'\n"
        "ptxas info    : Function properties for cgx_y\n"
        "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
        "ptxas info    : Used 8 registers, 352 bytes cmem[0]\n"
    )
    found = resources.parse(report)
    assert found == [("cgx_x", 90, 44, 308, 28), ("cgx_y", 80, 8, 0, 0)]
    assert len(resources.problems(found)) == 1 and "cgx_x on sm_90" in resources.problems(found)[0]
    assert "| `cgx_x` | 256 | 44 | 308 |\n" in resources.table("13.0", found, {"cgx_x": 256}, [])


# Two units of a loop whose body is skipped, or goes the long way round, by branches.
SASS = """
.text.cgx_counted:
        /*0000*/                   S2R R0, SR_TID.X ;
.L_x_0:
        /*0010*/              @!P0 BRA `(.L_x_1) ;
        /*0020*/                   LDG.E.128 R4, desc[UR4][R2.64] ;
        /*0030*/               @P3 STG.E desc[UR4][R2.64], R4 ;
        /*0040*/              @!P1 BRA `(.L_x_2) ;
        /*0050*/                   FFMA R4, R4, R5, R6 ;
        /*0060*/                   FFMA R5, R4, R5, R6 ;
        /*0070*/                   BRA `(.L_x_1) ;
.L_x_2:
        /*0080*/                   FFMA R4, R4, R5, R6 ;
        /*0090*/                   FADD R4, R4, R5 ;
        /*00a0*/                   FADD R4, R4, R5 ;
        /*00b0*/                   FFMA R5, R4, R5, R6 ;
        /*00c0*/                   CALL.REL.NOINC `($slow) ;
.L_x_1:
        /*00d0*/               @P2 BRA `(.L_x_0) ;
        /*00e0*/                   EXIT ;
.text.cgx_other:
        /*0000*/                   EXIT ;
"""


def test_instructions_on_the_shortest_way_are_counted() -> None:
    kernels = instructions.parse(SASS)
    assert [len(code) for code in kernels.values()] == [15, 1]
    code = kernels["cgx_counted"]
    # Once through the loop: all but the long way round; twice: a loop more.
    loads = {"LDG.E.128": 1, "STG.E": 0}
    once = instructions.shortest(code, loads, {"FFMA*": 2})
    assert once is not None and sum(once.values()) == 10 and once["@STG.E"] == 1
    twice = instructions.shortest(code, {"LDG.E.128": 2}, {"FFMA*": 4})
    assert twice is not None and sum(twice.values()) == 18
    assert instructions.shortest(code, {"LDG.E": 1}, {}) is None
    budget = instructions.Budget("cgx_counted", "any", 0.4, 1 << 20, {"LDG.E.128": 1}, {"FFMA*": 2})
    count = instructions.count(code, budget)
    assert count.per_value == (10 + 3 * 8) * 32 / 2048
    with pytest.raises(LookupError, match="cgx_counted.*: no way .* has 2 LDG.E, and no others"):
        instructions.count(code, budget._replace(accesses={"LDG.E": 2}))


def test_too_many_instructions_are_a_problem() -> None:
    budget = instructions.BUDGETS[0]
    few, many = (instructions.Count(budget, budget.most + more, 0.5) for more in (0, 0.25))
    assert instructions.problems([few]) == []
    (problem,) = instructions.problems([many])
    assert budget.kernel in problem and f"allowed: {budget.most:g}" in problem


def hip(source: Path, output: Path, *flags: str) -> str:
    command = [str(HIPCC), *build.HIP_FLAGS, "--offload-arch=gfx90a", "--cuda-device-only", "-S"]
    done = subprocess.run(
        [*command, *flags, "-x", "hip", str(source), "-o", str(output)],
        capture_output=True,
        text=True,
        env=build.ENVIRONMENT,
    )
    assert done.returncode == 0, done.stderr
    return output.read_text()


@pytest.mark.skipif(HIPCC is None, reason="there is no hipcc")
@pytest.mark.slow
def test_amd(source: Path, unfused: Path, tmp_path: Path) -> None:
    """Operations of floats are single and IEEE's; no kernel copies its arguments, of 2 KiB."""
    code = hip(unfused, tmp_path / "kernels.ll", "-emit-llvm")
    assert len(re.findall(r"^define .*amdgpu_kernel void @cgx_", code, re.MULTILINE)) == len(
        names()
    )
    assert len(re.findall(r"\bf(?:mul|add|div) float", code)) > 50
    assert not re.findall(r"llvm\.fma|\bf(?:mul|add|sub|div) \w+ float|!fpmath", code)
    machine = hip(source, tmp_path / "kernels.s")
    scratch = re.findall(r"\.amdhsa_private_segment_fixed_size (\d+)", machine)
    assert len(scratch) == len(names()) and max(map(int, scratch)) < 64
    assert re.findall(r"\.amdhsa_float_denorm_mode_32 (\d)", machine) == ["3"] * len(names())
