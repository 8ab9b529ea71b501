# SPDX-License-Identifier: Apache-2.0
"""opforge profile on a GPU: what Nsight Compute's table says, and how it is made."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from opforge.build import load, tools
from opforge.errors import ProfileError
from opforge.profile import child, metrics, ncu, raw, report, request, show
from opforge.profile.facts import Access, Kernel

SAMPLE = (Path(__file__).parent / "samples" / "ncu.csv").read_text()
CALLS = [
    {"what": "forward", "model_bytes": 268435456},
    {"what": "backward", "model_bytes": 402669568},
]


def changed(edit: Callable[[list[list[str]]], Any]) -> str:
    """The sample after ``edit`` of its rows: names, units, then the launches."""
    lines = [line for line in SAMPLE.splitlines() if line.startswith('"')]
    rows = list(csv.reader(lines))
    edit(rows)
    out = io.StringIO()
    csv.writer(out, quoting=csv.QUOTE_ALL).writerows(rows)
    return out.getvalue()


def without(*names: str) -> str:
    """The sample without the columns whose names begin so."""

    def edit(rows: list[list[str]]) -> None:
        kept = [i for i, n in enumerate(rows[0]) if not n.startswith(names)]
        rows[:] = [[row[i] for i in kept] for row in rows]

    return changed(edit)


def kernel(text: str, row: int = 1) -> Kernel:
    return metrics.read(raw.parse(text)[row])


# --- the table ---


def test_every_metric_that_is_asked_for_is_read() -> None:
    launch = raw.parse(SAMPLE)[1]
    assert set(launch.metrics) == set(metrics.wanted((9, 0)))
    read = metrics.read(launch)
    assert not [n for n in ("bank_conflicts", "limited_by") if getattr(read, n) is not None]
    for name in ("seconds", "read", "written", "dram_share", "compute_share", "tensor_share"):
        assert getattr(read, name) is not None
    assert read.local_bytes == 0


def test_a_launch_reads_as_facts_in_base_units() -> None:
    k = kernel(SAMPLE)
    assert (k.name, k.grid, k.block) == ("elementwise_vectors", "32768", "256")
    assert k.seconds == pytest.approx(65.472e-6)
    assert k.moved == 134221824 + 133169152
    assert k.bandwidth == pytest.approx(4.084e12, rel=1e-3)
    assert k.dram_share == pytest.approx(0.8841)
    assert (k.occupancy, k.occupancy_possible) == (pytest.approx(0.912), 1.0)
    assert k.limited_by is None  # occupancy can be full
    assert k.registers == 24
    assert k.loads == Access(16.0, 16.0)
    assert next(iter(k.stalls)) == "long_scoreboard"
    assert k.stalls["long_scoreboard"] == pytest.approx(38.2 / 50)
    assert sum(k.stalls.values()) == pytest.approx(1)


def test_what_limits_occupancy_conflicts_and_local_memory_are_told() -> None:
    k = kernel(SAMPLE, 3)
    assert k.limited_by == "registers"
    assert k.loads == Access(8.0, 2.0)
    assert k.bank_conflicts == pytest.approx(0.6)
    assert k.local_bytes == 3_000_000 * 32
    assert k.shared_bytes == 17408


@pytest.mark.parametrize(
    ("unit", "factor"),
    [
        *(("s", 1e9), ("second", 1e9), ("ms", 1e6), ("msecond", 1e6)),
        *(("us", 1e3), ("usecond", 1e3), ("ns", 1.0), ("nsecond", 1.0)),
    ],
)
def test_times_come_in_any_unit(unit: str, factor: float) -> None:
    def edit(rows: list[list[str]]) -> None:
        column = rows[0].index("gpu__time_duration.sum")
        rows[1][column], rows[3][column] = unit, f"{65472 / factor:.9f}"

    assert kernel(changed(edit)).seconds == pytest.approx(65.472e-6)


@pytest.mark.parametrize(
    ("unit", "factor"),
    [("byte", 1), ("Kbyte", 1e3), ("Mbyte", 1e6), ("Gbyte", 1e9)],
)
def test_bytes_come_in_any_unit(unit: str, factor: float) -> None:
    def edit(rows: list[list[str]]) -> None:
        column = rows[0].index("dram__bytes_read.sum")
        rows[1][column], rows[3][column] = unit, f"{134221824 / factor:.12f}"

    assert kernel(changed(edit)).read == pytest.approx(134221824)


@pytest.mark.parametrize("cell", ["n/a", "(!) n/a", "", "nan"])
def test_what_is_not_available_is_unknown(cell: str) -> None:
    def edit(rows: list[list[str]]) -> None:
        rows[3] = [v if i < 11 else cell for i, v in enumerate(rows[3])]

    k = kernel(changed(edit))
    assert k.name == "elementwise_vectors"
    assert k.metrics == {}
    facts = (k.seconds, k.moved, k.bandwidth, k.dram_share, k.occupancy, k.registers, k.loads)
    assert facts == (None,) * 7
    assert k.stalls == {}
    assert k.limited_by is None


@pytest.mark.parametrize(
    ("columns", "unknown"),
    [
        ("dram__bytes_write", ("written", "moved", "bandwidth")),
        ("gpu__time", ("seconds", "bandwidth")),
        ("smsp__sass_average", ("loads", "stores")),
        ("launch__registers", ("registers",)),
        ("sm__pipe_tensor", ("tensor_share",)),
    ],
)
def test_a_missing_column_is_unknown_and_nothing_else_is(
    columns: str, unknown: tuple[str, ...]
) -> None:
    before, after = kernel(SAMPLE, 3), kernel(without(columns), 3)
    for name in (*vars(before), "moved", "bandwidth"):
        if name in unknown:
            assert getattr(after, name) is None
        elif name != "metrics":
            assert getattr(after, name) == getattr(before, name)


def test_messages_of_ncu_between_the_lines_are_passed_over() -> None:
    lines = SAMPLE.splitlines()
    lines.insert(-1, '==WARNING== Unable to access the metric "x"')
    assert raw.parse("\n".join(lines)) == raw.parse(SAMPLE)
    assert len(raw.parse(SAMPLE)) == 5
    assert raw.parse("==PROF== Disconnected\n==WARNING== No kernels were profiled.\n") == []


def test_a_table_that_is_not_understood_is_refused() -> None:
    with pytest.raises(ProfileError, match="without kernel names"):
        raw.parse(without("Kernel Name"))
    with pytest.raises(ProfileError, match=r"values for .* columns"):
        raw.parse(changed(lambda rows: rows[3].pop()))


def test_only_hopper_is_asked_for_its_own_stall() -> None:
    gmma = "smsp__average_warps_issue_stalled_gmma_per_issue_active.ratio"
    assert gmma in metrics.wanted((9, 0))
    assert gmma not in metrics.wanted((8, 0))
    assert len(set(metrics.wanted((9, 0)))) == len(metrics.wanted((9, 0)))


@pytest.mark.parametrize(
    ("signature", "name"),
    [
        ("void opforge::f<(int)2, A<float>>(opforge::Params<T1, T2>, T3)", "f"),
        ("f", "f"),
        ("spin_kernel(long)", "spin_kernel"),
        ("void at::native::(anonymous namespace)::g<float>(int)", "g"),
        ("void k<h(int)::{lambda(float)#1}>(int, void (*)(int))", "k"),
    ],
)
def test_short_names(signature: str, name: str) -> None:
    assert metrics.short_name(signature) == name


# --- running ncu ---


def test_launches_go_to_the_call_whose_marker_precedes_them() -> None:
    forward, backward = ncu.sort(raw.parse(SAMPLE), CALLS)
    assert [k.name for k in forward.kernels] == ["elementwise_vectors"]
    assert [k.name for k in backward.kernels] == ["column_sums", "column_finish"]
    assert backward.model_bytes == 402669568
    assert backward.slowest is backward.kernels[0]
    with pytest.raises(ProfileError, match="saw 2 of 3 calls"):
        ncu.sort(raw.parse(SAMPLE), [*CALLS, CALLS[0]])


def test_a_call_without_a_kernel_is_no_error() -> None:
    lines = SAMPLE.splitlines()
    text = "\n".join(line for line in lines if "column_" not in line)
    assert ncu.sort(raw.parse(text), CALLS)[1].kernels == []


@pytest.mark.parametrize(
    ("printed", "stderr", "said", "message"),
    [
        ("==ERROR== ERR_NVGPUCTRPERM - The user …", "", {"calls": []}, "RestrictProfiling.*=0"),
        ("", "", {"error": "does not fit"}, "does not fit"),
        ("==ERROR== Failed to find metric", "", {"calls": []}, "failed: Failed to find metric"),
        ("==PROF== x", "Segmentation fault\n", {}, "ended early:\nSegmentation fault"),
    ],
)
def test_failures_say_what_happened(
    printed: str, stderr: str, said: dict[str, Any], message: str
) -> None:
    with pytest.raises(ProfileError, match=message):
        ncu.check(printed, stderr, said)
    ncu.check("==WARNING== slow", "a warning", {"calls": []})


@pytest.fixture
def stub_ncu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for ncu that notes its arguments and writes the sample where ncu would."""
    monkeypatch.setattr(load, "find", lambda op, target: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    program = tmp_path / "ncu"
    program.write_text(
        f"#!{sys.executable}\n"
        "import json, pathlib, sys\n"
        "a = sys.argv[1:]\n"
        f"pathlib.Path({str(tmp_path / 'arguments')!r}).write_text(json.dumps(a))\n"
        f"pathlib.Path(a[a.index('--log-file') + 1]).write_text({SAMPLE!r})\n"
        f"facts = json.dumps({{'calls': {CALLS!r}}})\n"
        "pathlib.Path(a[a.index('--facts') + 1]).write_text(facts)\n"
    )
    program.chmod(0o755)
    return program


def test_ncu_is_told_to_leave_the_clocks_alone(stub_ncu: Path) -> None:
    wanted = request.resolve("relu", "64x64", "float16", backward=True)
    calls = ncu.measure(wanted, str(stub_ncu))
    assert [c.what for c in calls] == ["forward", "backward"]
    given = json.loads((stub_ncu.parent / "arguments").read_text())
    assert given[given.index("--clock-control") + 1] == "none"
    assert given[given.index("--profile-from-start") + 1] == "off"
    assert given[given.index("--page") + 1] == "raw"
    assert given[given.index("--print-units") + 1] == "base"
    assert given[given.index("--metrics") + 1].split(",") == metrics.wanted((9, 0))
    called = given[given.index("-m") + 1 :]
    assert called[:5] == ["opforge.profile.child", "relu", "64x64", "float16", "--backward"]


@pytest.fixture
def child_on_cpu(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The profiled process on the CPU, and what it asks of CUDA."""
    asked: list[str] = []
    real = request.runs
    monkeypatch.setattr(request, "runs", lambda wanted, device: real(wanted, "cpu"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: asked.append("synchronize"))
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: asked.append("marker"))
    monkeypatch.setattr(torch.cuda.profiler, "start", lambda: asked.append("start"))
    monkeypatch.setattr(torch.cuda.profiler, "stop", lambda: asked.append("stop"))
    return asked


def test_the_profiled_process_marks_each_call_and_tells_what_it_did(
    tmp_path: Path, child_on_cpu: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "facts.json"
    arguments = ["child", "relu", "4x8", "float32", "--backward", "--facts", str(file)]
    monkeypatch.setattr(sys, "argv", arguments)
    child.main()
    between = ["marker", "marker", "synchronize"]  # kernels must have ended when ncu stops
    assert child_on_cpu == ["synchronize", "start", *between, "stop"]
    assert json.loads(file.read_text()) == {
        "calls": [
            {"what": "forward", "model_bytes": 2 * 4 * 8 * 4},
            {"what": "backward", "model_bytes": 3 * 4 * 8 * 4},
        ]
    }
    monkeypatch.setattr(sys, "argv", ["child", "relu", "4x8", "int32", "--facts", str(file)])
    with pytest.raises(SystemExit, match="2"):
        child.main()
    assert "does not take dtype 'int32'" in json.loads(file.read_text())["error"]


@pytest.mark.cuda
def test_a_gpu_is_measured() -> None:
    program = tools.find("ncu")
    if program is None:
        pytest.skip("needs Nsight Compute")
    wanted = request.resolve("relu", "4096x4096", "bfloat16", backward=True)
    forward, backward = ncu.measure(wanted, program)
    assert [k.name for k in forward.kernels] == ["elementwise_vectors"]
    k = forward.kernels[0]
    missing = set(metrics.wanted(torch.cuda.get_device_capability())) - set(k.metrics)
    assert not missing
    assert k.seconds is not None
    assert 1e-6 < k.seconds < 1e-2
    assert k.loads is not None
    assert k.loads.sectors == pytest.approx(16, rel=0.01)
    assert k.loads.ideal == pytest.approx(16, rel=0.01)
    assert forward.moved is not None
    assert forward.model_bytes is not None
    assert 0.4 < forward.moved / forward.model_bytes < 1.2  # a part may stay in L2
    assert backward.kernels


def test_the_report_of_a_gpu_tells_facts_and_advice(capsys: pytest.CaptureFixture[str]) -> None:
    calls = ncu.sort(raw.parse(SAMPLE), CALLS)
    found = report.Profile("relu", "measured", calls, [], "", [])
    show.on_console(found, Console(width=200))
    text = capsys.readouterr().out
    assert "forward: 1 kernel, 65.5 µs, moves 267 MB (it must move 268 MB)" in text
    assert "4.08 TB/s, 88% of the peak" in text
    assert "23% of 25% possible, limited by registers; 116 registers" in text
    assert "waiting for global or local memory 76%, the queue of global" in text
    assert "loads 8.0 (2.0), stores 4.0 (4.0); bank conflicts 60%" in text
    assert "tensor cores n/a" in text
    assert text.count("what to try next") == 2
    assert json.loads(json.dumps(found.as_json()))["calls"][0]["advice"][0].startswith("element")


def test_the_three_largest_stalls_are_told_and_work_is_none() -> None:
    stalls = {"selected": 0.4, "wait": 0.3, "not_selected": 0.1, "barrier": 0.1}
    k = Kernel("k", seconds=1e-3, stalls={**stalls, "drain": 0.06, "misc": 0.04})
    (line,) = [x for x in show.measured(k) if x.startswith("stalls")]
    words = "a fixed latency 30%, waiting at a barrier 10%, waiting for its last stores to leave 6"
    assert line == f"stalls      waiting for {words}.0%"
