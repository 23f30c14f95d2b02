"""`cgx doctor`: each check against facts that the test invents, and the whole command."""

import json
import os
import subprocess

import pytest
import torch

from tests import warm
from tests.comm.test_mpi_jobs import Library
from tests.distributed import ROOT
from tests.ports import free_port
from torch_cgx import _C, __version__, _build_info
from torch_cgx.cli import main as cli
from torch_cgx.cli.doctor import host, software, variables
from torch_cgx.cli.doctor.finding import NOTE, OK, PROBLEM, Finding
from torch_cgx.cli.doctor.ranks import compare
from torch_cgx.cli.doctor.reductions import communicators, verdict
from torch_cgx.cli.doctor.show import json_of, text_of
from torch_cgx.launch._network import Address

MIB = 1 << 20


@pytest.mark.parametrize(
    "version, gloo, status, text",
    [
        ("2.13.0+cpu", True, OK, "2.13.0+cpu"),
        ("2.11.0", True, OK, "2.11.0"),
        ("2.10.1", True, PROBLEM, "allowed: 2.11 to 2.14"),
        ("2.15.0", True, PROBLEM, "allowed: 2.11 to 2.14"),
        ("2.13.0", False, PROBLEM, "without Gloo"),
    ],
)
def test_torch(version, gloo, status, text):
    found = software.check_torch(version, gloo)
    assert (found.status, text in found.found) == (status, True)


def test_an_extension_for_another_torch_names_both_and_the_wheel(monkeypatch):
    built = {"torch": "2.12.1", "version": "0.1.0", "cxx11_abi": True, "compiler": "g++ 12"}
    monkeypatch.setattr(_build_info, "read", lambda: built)
    found, engine = software.check_extension(built, abi=True)
    assert (found.status, engine) == (PROBLEM, None)
    assert "built for torch 2.12, and torch 2.13.0" in found.found
    assert "torch_cgx-0.1.0+torch2.13" in found.found


def test_the_abi_is_compared_with_torchs():
    built = {"torch": torch.__version__, "version": "0.1.0", "compiler": "g++ 12"}
    for abi in (True, False):
        found, engine = software.check_extension({**built, "cxx11_abi": abi}, abi=True)
        assert engine is not None
        assert found.status == (OK if abi else PROBLEM)
        assert f"cxx11_abi={abi}" in found.found


def test_an_extension_that_is_missing_has_no_word_on_its_abi(monkeypatch):
    def missing():
        raise ImportError("torch_cgx is here without its extension")

    monkeypatch.setattr(_build_info, "load_engine", missing)
    found, _ = software.check_extension({"cxx11_abi": True}, abi=True)
    assert found.found == "torch_cgx is here without its extension"


def test_the_import_of_the_package_names_them_too(tmp_path):
    script = (
        "import torch_cgx._build_info as info\n"
        "info.read = lambda: {'torch': '2.12.0', 'version': '0.1.0'}\n"
        "import torch_cgx\n"
        "torch_cgx.Options\n"
    )
    done = subprocess.run(
        [*warm.python(), "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert "ImportError: this torch_cgx was built for torch 2.12, and torch 2.13" in done.stderr


@pytest.mark.parametrize(
    "built, torch, fits",
    [
        ({}, "2.13.0", True),
        ({"torch": "2.13.0+cpu"}, "2.13.1+cu130", True),
        ({"torch": "2.13.0"}, "2.14.0", False),
        ({"torch": "2.1.0"}, "2.13.0", False),
    ],
)
def test_minor_versions_of_torch_must_be_equal(built, torch, fits):
    assert (_build_info.misfit(built, torch) == "") is fits


@pytest.mark.parametrize("content", [None, "", "[]", "{"])
def test_a_missing_or_broken_record_is_no_record(tmp_path, content):
    file = tmp_path / "record.json"
    if content is not None:
        file.write_text(content)
    assert _build_info.read(file) == {}


def test_versions_of_package_and_extension_must_be_equal():
    assert software.check_package("0.1.0", {"version": "0.1.0"}).status == OK
    found = software.check_package("0.2.0", {"version": "0.1.0"})
    assert found.status == PROBLEM and "0.1.0" in found.found and "0.2.0" in found.found


def test_mpi_that_was_asked_for_and_is_missing_is_a_problem(monkeypatch):
    from torch_cgx import _mpi_loader

    def fails():
        raise RuntimeError("torch_cgx was built without Open MPI")

    monkeypatch.setattr(_mpi_loader, "load", fails)
    monkeypatch.setattr(_mpi_loader, "built", list)
    assert [one.status for one in software.check_mpi({})][0] == NOTE
    found = software.check_mpi({"CGX_CROSS_COMMUNICATOR_TYPE": "mpi"})[0]
    assert found.status == PROBLEM
    assert found.found.startswith("CGX_CROSS_COMMUNICATOR_TYPE=mpi: torch_cgx was built without")


def test_nccl_that_was_asked_for_and_is_missing_is_a_problem():
    import torch

    findings = software.check_gpu(torch, False, {"CGX_INNER_COMMUNICATOR_TYPE": "NCCL"})
    assert findings[0].status == PROBLEM
    assert "unset CGX_INNER_COMMUNICATOR_TYPE" in findings[0].mend
    assert all(one.status != PROBLEM for one in software.check_gpu(torch, False, {}))


def test_kernels_are_built_or_compiled_or_missing(tmp_path):
    assert software.check_kernels(tmp_path, False).status == NOTE
    assert "CuPy" in software.check_kernels(tmp_path, True).found
    (tmp_path / "_kernels.fatbin").touch()
    assert "built with the package" in software.check_kernels(tmp_path, False).found


@pytest.mark.parametrize(
    "free, status", [(4 * MIB, PROBLEM), (5 * MIB, NOTE), (39 * MIB, NOTE), (40 * MIB, OK)]
)
def test_shared_memory_holds_two_blocks_a_rank(tmp_path, free, status):
    found = host.check_shm(tmp_path, MIB, 2, "", free)
    assert found.status == status
    assert "a group of 2 ranks takes up to 5 MiB" in found.found
    assert ("--shm-size" in found.mend) is (status != OK)


def test_no_shared_memory_is_a_problem(tmp_path):
    found = host.check_shm(tmp_path / "missing", MIB, 2, "")
    assert found.status == PROBLEM and "CGX_INNER_COMMUNICATOR_TYPE=GLOO" in found.mend


def test_no_shared_memory_is_a_note_where_groups_do_without_it(tmp_path):
    found = host.check_shm(tmp_path / "missing", MIB, 2, "", needed=False)
    assert found.status == NOTE
    assert host.check_shm(tmp_path, MIB, 2, "", 4 * MIB, needed=False).status == NOTE


@pytest.mark.parametrize("inner, status", [("", PROBLEM), ("SHM", PROBLEM), (" gloo ", NOTE)])
def test_what_doctor_says_about_shared_memory_mends_it(monkeypatch, tmp_path, inner, status):
    from torch_cgx.cli.doctor import local_findings

    monkeypatch.setattr(host, "SHM", tmp_path / "missing")
    findings, _ = local_findings({"CGX_INNER_COMMUNICATOR_TYPE": inner})
    assert [one.status for one in findings if one.name == "shared memory"] == [status]


def test_blocks_that_were_left_behind_are_shown_after_a_minute(tmp_path):
    assert host.check_leftovers(tmp_path) is None
    (tmp_path / "cgx-123").touch()
    (tmp_path / "other").touch()
    now = (tmp_path / "cgx-123").stat().st_mtime
    assert host.check_leftovers(tmp_path, now + 30) is None
    found = host.check_leftovers(tmp_path, now + 90)
    assert found is not None and found.status == NOTE and found.found.startswith("1 blocks")


@pytest.mark.parametrize(
    "named, status, text",
    [
        ("", OK, "lo 127.0.0.1, eth0 10.0.0.1"),
        ("eth0", OK, "eth0 10.0.0.1"),
        ("eth0,lo", OK, "eth0"),
        ("eth1", PROBLEM, "'eth1' is down or has no address; usable: eth0, lo"),
        ("ib0", PROBLEM, "'ib0' is not on this host; usable: eth0, lo"),
    ],
)
def test_interfaces(named, status, text):
    up = [Address("lo", "127.0.0.1"), Address("eth0", "10.0.0.1")]
    env = {"GLOO_SOCKET_IFNAME": named} if named else {}
    found = host.check_interfaces(up, ["lo", "eth0", "eth1"], env)
    assert (found.status, text in found.found) == (status, True)


@pytest.mark.parametrize(
    "value, used",
    [
        ("eth", "eth0"),
        ("=eth0", "eth0"),
        ("ib,lo", "lo"),
        ("^lo", "eth0"),
        ("^=eth0", "lo"),
        ("^eth", "lo"),
        ("eth0:1", "eth0"),
        ("=", "lo, eth0"),
        ("^", None),
        ("=eth", None),
        ("ib", None),
        ("^lo,eth", None),
    ],
)
def test_interfaces_of_nccl(value, used):
    up = [Address("lo", "127.0.0.1"), Address("eth0", "10.0.0.1"), Address("eth0", "fe80::1")]
    found = host.check_nccl_interfaces(up, {"NCCL_SOCKET_IFNAME": value})
    assert found is not None
    if used is None:
        assert found.status == PROBLEM and "usable: lo, eth0" in found.found
    else:
        assert (found.status, found.found) == (OK, f"{value}: {used}")
    assert host.check_nccl_interfaces(up, {}) is None


@pytest.mark.parametrize(
    "addresses, named, status",
    [(["10.0.0.1"], "", OK), (["127.0.1.1"], "", NOTE), ([], "", NOTE), (["::1"], "eth0", OK)],
)
def test_host_name(addresses, named, status):
    env = {"GLOO_SOCKET_IFNAME": named} if named else {}
    found = host.check_name("a", addresses, env)
    assert found.status == status
    if status == NOTE:
        for option in ("--local-addr", "--rdzv-conf is_host=1", "GLOO_SOCKET_IFNAME"):
            assert option in found.mend


@pytest.mark.parametrize("limit, status", [(256, NOTE), (1024, OK)])
def test_open_files(limit, status):
    assert host.check_files(limit).status == status


@pytest.mark.parametrize(
    "name, value, status, text",
    [
        ("CGX_COMPRESSION_QUANTIZATION_BITS", "4", OK, "4"),
        ("CGX_COMPRESSION_QUANTIZATION_BITS", "12", NOTE, "nothing is compressed"),
        ("CGX_COMPRESSION_QUANTIZATION_BITS", "four", PROBLEM, "is not allowed"),
        ("CGX_CPU_LEVEL", "sse", PROBLEM, "is not allowed"),
        ("CGX_CPU_LEVEL", "scalar", OK, "scalar"),
        ("CGX_BUCKETSIZE", "4", PROBLEM, "has no effect"),
    ],
)
def test_variables(monkeypatch, name, value, status, text):
    monkeypatch.setenv(name, value)
    findings = [one for one in variables.check_variables(_C, {name: value}) if one.name == name]
    assert [(one.status, text in one.found) for one in findings] == [(status, True)]


def test_an_unknown_variable_gets_the_nearest_name():
    found = variables.check_variables(_C, {"CGX_COMPRESION_BUCKET_SIZE": "4"})[0]
    assert found.mend == "did you mean CGX_COMPRESSION_BUCKET_SIZE?"


def test_values_that_do_not_go_together_are_a_problem(monkeypatch):
    monkeypatch.setenv("CGX_COMPRESSION_TYPE", "bf16")
    monkeypatch.setenv("CGX_COMPRESSION_QUANTIZATION_BITS", "4")
    found = variables.check_variables(_C, dict.fromkeys(["CGX_COMPRESSION_TYPE"], "bf16"))
    assert [one.status for one in found] == [OK, PROBLEM]


def facts(**other):
    return {
        "host": "a",
        "host_id": "h",
        "network": "n",
        "torch_cgx": "0.1.0",
        "torch": "2.13.0",
        "settings": {},
        "cuda": False,
        **other,
    }


@pytest.mark.parametrize(
    "other, name, text",
    [
        ({"torch_cgx": "0.2.0", "host": "b"}, "torch_cgx", "0.1.0 on rank 0 (a); 0.2.0 on rank 1"),
        ({"torch": "2.12.0"}, "torch", "2.13.0 on rank 0 (a); 2.12.0 on rank 1 (a)"),
        ({"settings": {"CGX_CHECKSUM": "1"}}, "the environment variables CGX_*", "none set on"),
    ],
)
def test_ranks_that_differ(other, name, text):
    found = compare([facts(), facts(**other)])
    assert [(one.name, one.status) for one in found] == [(name, PROBLEM)]
    assert text in found[0].found


def test_ranks_that_are_alike_are_counted_by_host():
    # As groups count: ranks in several network namespaces may share one /dev/shm.
    found = compare([facts(), facts(host_id="i"), facts(network="m")])
    assert [(one.status, one.found) for one in found] == [(OK, "3 ranks on 2 hosts, alike")]


def test_shared_memory_is_tried_where_two_ranks_share_a_host():
    apart = [facts(), facts(host_id="i")]
    assert [name for name, _, _ in communicators(apart, mpi=True)] == ["GLOO", "MPI"]
    assert [name for name, _, _ in communicators([facts(), facts()], mpi=False)] == ["SHM", "GLOO"]


ANSWER = {
    "exact": True,
    "relative_error": 0.1,
    "digest": "x",
    "seconds_exact": 1e-3,
    "seconds": 2e-3,
    "communicator": "shm",
}


@pytest.mark.parametrize(
    "other, status, text",
    [
        ({}, OK, "equal and right on all 2 ranks"),
        ({"digest": "y"}, PROBLEM, "different results"),
        ({"exact": False}, PROBLEM, "wrong sum"),
        ({"relative_error": 0.5}, PROBLEM, "relative error at 4 bits 0.5"),
        ({"error": "no route"}, PROBLEM, "rank 1: no route"),
    ],
)
def test_verdict_of_a_communicator(other, status, text):
    found = verdict("SHM", [ANSWER, {**ANSWER, **other}])
    assert (found.status, text in found.found) == (status, True)


def test_text_and_json_hold_the_same_findings():
    findings = [
        Finding("a", "one", OK, "fine"),
        Finding("b", "two", PROBLEM, "bad " * 40, "mend it"),
    ]
    shown = text_of(findings)
    assert max(map(len, shown.splitlines())) <= 100
    assert "-> mend it" in shown and shown.endswith("1 problem: two")
    parsed = json.loads(json_of(findings))
    assert parsed["ok"] is False
    assert [Finding(**one) for one in parsed["findings"]] == findings


def test_the_command_finds_no_problem_here(capsys):
    assert cli(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] is True
    by_name = {one["name"]: one for one in found["findings"]}
    assert by_name["torch_cgx"]["found"].startswith(__version__)
    assert {"torch", "extension", "CPU", "shared memory", "interfaces", "CGX_*"} <= set(by_name)


@pytest.mark.parametrize(
    "name, value", [("GLOO_SOCKET_IFNAME", "nope0"), ("CGX_CHECKSUM", "2"), ("CGX_NONSENSE", "1")]
)
def test_what_is_set_and_cannot_work_is_status_1(monkeypatch, capsys, name, value):
    monkeypatch.setenv(name, value)
    assert cli(["doctor"]) == 1
    assert "1 problem: " in capsys.readouterr().out


def torchrun(*words):
    command = [*warm.python(), "-m", "torch.distributed.run", "--standalone"]
    return subprocess.run(
        [*command, "--nproc-per-node", "2", "-m", "torch_cgx", "doctor", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **warm.NESTED},
    )


def test_under_torchrun_every_communicator_is_tried_and_rank_0_prints():
    done = torchrun("--json")
    assert done.returncode == 0, done.stderr
    found = {one["name"]: one for one in json.loads(done.stdout)["findings"]}
    assert found["ranks"]["found"] == "2 ranks on 1 host, alike"
    for name, carrier in (("SHM", "shm"), ("GLOO", "gloo")):
        assert found[name]["status"] == OK
        assert found[name]["found"].startswith(f"{carrier}: 1 MiB in ")


def test_a_rank_that_is_missing_is_one_line_and_status_1(monkeypatch):
    env = {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    done = subprocess.run(
        [*warm.python(), "-m", "torch_cgx", "doctor", "--timeout", "3"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (1, "")
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("cgx doctor: ") and "within 3 s" in last


@pytest.mark.parametrize("variable", ["CGX_TEST_OPENMPI", "CGX_TEST_MPICH"])
def test_under_mpirun_mpi_is_tried_as_well(variable):
    prefix = os.environ.get(variable)
    if not prefix:
        pytest.skip(f"{variable} names no environment with this MPI (make test does)")
    library = Library(variable, f"{prefix}/bin/mpirun", f"{prefix}/bin/python")
    python = warm.python(library.python)
    done = subprocess.run(
        [library.mpirun, "-np", "2", *python, "-m", "torch_cgx", "doctor", "--json"],
        cwd=ROOT,
        env=library.environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    found = {one["name"]: one for one in json.loads(done.stdout)["findings"]}
    assert {name: found[name]["status"] for name in ("SHM", "GLOO", "MPI")} == dict.fromkeys(
        ("SHM", "GLOO", "MPI"), OK
    )
    assert found["MPI"]["found"].startswith("mpi: 1 MiB in ")
