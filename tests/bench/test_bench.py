# SPDX-License-Identifier: Apache-2.0
"""`opforge bench`: what it times, what it says, what it refuses before anything is timed."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from bench_runs import SIZE, rows_of, write
from helpers import write_op

from opforge import Op
from opforge.bench import clock, measure, results, shapes
from opforge.errors import RecordError

# --- what it says ---------------------------------------------------------------------------------


@pytest.mark.nightly
def test_it_shows_times_shares_and_everybody_by_name(bench, tmp_path):
    done = bench("scale_bias_relu", "--shapes", SIZE, "--backward", "--json", tmp_path / "r.json",
                 "--peers", "eager, torch.compile", "--commit", "abc-dirty")  # fmt: skip
    assert done.code == 0, done.out + done.err
    for title in ("scale_bias_relu forward, float32", "scale_bias_relu backward, float32"):
        assert title in done.out
    table = done.out.split("backward, float32")[0].splitlines()
    heads, ours, eager, compiled = (line.split() for line in table[1:5])
    assert heads == ["shape", "MB", "Mop", "µs", "±", "GB/s", "%", "speed"]
    assert (ours[:4], eager[0], compiled[0]) == (
        ["128", "×", "256", "0.263"], "eager", "torch.compile"
    )  # fmt: skip
    assert ours[4:6] == ["0.0983", "opforge"]
    assert float(ours[6]) > 0
    peers = r"(eager|torch\.compile)"
    assert re.search(rf" (\d+\.\d\d× {peers}|{peers}, within the noise)$", table[2].rstrip())
    assert "%: share of the ceiling, which is a copy of" in " ".join(done.out.split())
    assert f"written to {tmp_path / 'r.json'}" in done.out

    kept = results.read(tmp_path / "r.json")
    assert [(r.direction, r.implementation) for r in kept.rows] == [
        (direction, name)
        for direction in ("forward", "backward")
        for name in ("opforge", "eager", "torch.compile")
    ]
    for one in kept.rows:
        assert one.error == one.note == ""
        assert one.low <= one.us <= one.high
        assert one.turns >= 9
        assert one.calls == 16
        assert one.ceiling == "copy"
        assert one.ulp_rms < 1 or one.direction == "backward"  # where sums are near 0
        assert one.bytes == (4 if one.direction == "forward" else 6) * 128 * 256 * 2 + 1024
    (facts,) = kept.runs.values()
    assert (facts["commit"], facts["torch"]) == ("abc-dirty", torch.__version__)
    assert facts["method"] == (
        "host clock around one call on each of several input sets, changed just before; "
        "implementations take turns; median"
    )


@pytest.mark.nightly
def test_every_variant_and_dtype_has_a_table(bench):
    done = bench("vector_add", "reduce_sum", "--shapes", "64x65", "--dtype", "fp32,bfloat16",
                 "--peers", "none", "--backward")  # fmt: skip
    assert done.code == 0, done.out + done.err
    for dtype in ("float32", "bfloat16"):
        for title in (
            "vector_add forward, equal shapes",
            "vector_add backward, a row added",
            "reduce_sum forward, last dim",
            "reduce_sum forward, all",
        ):
            assert f"{title}, {dtype}" in done.out
    assert "its gradients are views: no byte moves, and nothing is timed" in done.out


def test_a_sweep_times_its_shapes(bench, monkeypatch):
    monkeypatch.setattr(shapes, "sweep", lambda device: [(16, 64), (32, 64)])
    done = bench("relu", "--sweep", "--peers", "none")
    assert done.code == 0, done.out + done.err
    assert "16 × 64" in done.out
    assert "32 × 64" in done.out
    both = bench("relu", "--sweep", "--shapes", SIZE)
    assert both.code == 2
    assert "choose one of --sweep and --shapes" in both.err


@pytest.mark.nightly
def test_an_op_takes_at_most_a_minute_by_default():
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", "opforge", "bench", "relu", "--on", "cpu"],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "200", "OMP_NUM_THREADS": "1"},
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1024 × 4096" in done.stdout
    # Of one thread's own: whoever shares the machine does not count.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 60


def test_into_a_pipe_it_says_what_it_is_timing(bench):
    done = bench("relu", "--shapes", "8x8", "--peers", "eager")
    assert done.code == 0, done.out + done.err
    said = [line for line in done.err.splitlines() if line.startswith("opforge: timing ")]
    assert said[0] == "opforge: timing relu forward 8x8: opforge"
    assert "opforge: timing relu forward 8x8: eager" in said
    assert len(said) == len(set(said))  # not again for every turn


# --- files and older results ----------------------------------------------------------------------


def test_runs_are_merged_and_compared_with_older_ones(bench, tmp_path):
    file = tmp_path / "results.json"
    for shape in (SIZE, "64x64"):
        assert bench("relu", "--shapes", shape, "--peers", "eager", "--json", file).code == 0
    kept = results.read(file)
    assert [(r.shape, r.implementation) for r in kept.rows] == [
        (shape, name) for shape in ((128, 256), (64, 64)) for name in ("opforge", "eager")
    ]
    assert len(kept.runs) == 2

    # Only the row that is in both is compared; on a busy machine nothing closer can be asked for.
    same = bench("relu", "--shapes", f"{SIZE},32x64", "--peers", "none", "--against", file,
                 "--fail-below", "0.2")  # fmt: skip
    assert same.code == 0, same.out + same.err
    assert "1 the same" in same.out or "1 faster" in same.out or "1 slower" in same.out

    for one in kept.rows:
        one.us, one.low, one.high = one.us / 10, one.us / 10, one.us / 10
    kept.write(file)
    for options in ([], ["--fail-below", "0.5"]):
        slower = bench("relu", "--shapes", SIZE, "--peers", "none", "--against", file, *options)
        assert slower.code == 1
        assert "slower: relu forward, float32, 128 × 256: " in slower.out
        assert "1 slower, 0 faster, 0 the same" in slower.out
    # What is allowed is said all the same.
    allowed = bench("relu", "--shapes", SIZE, "--peers", "none", "--against", file,
                    "--fail-below", "0")  # fmt: skip
    assert allowed.code == 0, allowed.out + allowed.err
    assert "1 slower, 0 faster, 0 the same" in allowed.out

    others = bench("relu", "--shapes", "32x32", "--peers", "none", "--against", file)
    assert others.code == 2
    assert others.err.endswith(
        f"opforge: {file} has no result for any of the workloads measured now\n"
    )


def test_results_of_another_machine_are_not_mixed_in(bench, tmp_path):
    file = tmp_path / "r.json"
    assert bench("relu", "--shapes", "8x8", "--peers", "none", "--json", file).code == 0
    kept = results.read(file)
    for run in kept.runs.values():
        run["gpu"] = "NVIDIA H200"
    kept.write(file)
    for option in ("--json", "--against"):
        done = bench("relu", "--shapes", "8x8", option, file)
        assert done.code == 2
        assert "has results of NVIDIA H200, but these are from the CPU; choose another" in done.err


def test_what_had_a_time_before_and_has_none_now_is_a_fault(bench, tmp_path, monkeypatch):
    file = tmp_path / "r.json"
    folder = write(tmp_path, "greedy", reference="lambda x: 2 * x")
    assert bench(folder, "--shapes", "8x8", "--peers", "eager", "--json", file).code == 0

    def no_memory(*arguments: object) -> None:
        raise torch.OutOfMemoryError("none left")

    monkeypatch.setattr(measure.Forward, "prepare", no_memory)
    done = bench(folder, "--shapes", "8x8", "--peers", "eager", "--against", file)
    assert "no time any more: greedy forward, float32, 8 × 8: out of memory" in done.out
    assert done.code == 1


def test_a_peer_that_only_one_of_the_ops_has_is_timed_there(bench, tmp_path):
    folder = write(tmp_path, "doubling", doubler="lambda: lambda x: x + x")
    done = bench("relu", folder, "--shapes", "8x8", "--peers", "doubler")
    assert done.code == 0, done.out + done.err
    assert done.out.count("doubler") >= 1
    assert "relu forward" in done.out


def test_to_be_slower_than_the_best_other_is_a_fault_if_asked(bench, tmp_path):
    folder = tmp_path / "folder"
    done = bench("relu", "--shapes", SIZE, "--peers", "eager", "--fail-below", "100", "--json",
                 folder)  # fmt: skip
    assert done.code == 1
    assert "too slow: relu forward, float32, 128 × 256: " in done.out
    assert "× the speed of eager, not 100×" in done.out
    assert set(rows_of(folder / "relu.json")) == {"opforge", "eager"}
    enough = bench("relu", "--shapes", SIZE, "--peers", "eager", "--fail-below", "0.01")
    assert enough.code == 0
    assert "too slow" not in enough.out


def test_an_error_of_the_gpu_ends_it_in_one_line(bench, tmp_path):
    lost = "lambda: lambda x: (_ for _ in ()).throw(torch.AcceleratorError('illegal access'))"
    done = bench(write(tmp_path, "losing", lost=lost), "--shapes", SIZE, "--peers", "lost")
    assert done.code == 2
    assert "losing forward: the GPU reports an error, and this process cannot" in done.err
    assert "illegal access" in done.err
    assert "`opforge check losing --sanitize` finds it" in done.err


LOOKUP = """\
import torch
from opforge import Op

op = Op(
    schema="{name}(Tensor table, Tensor rows) -> Tensor y",
    reference=lambda table, rows: table[rows],
    dtypes=(torch.float32, torch.int64),
    sized=lambda make, n: (make(n, 512), torch.randint(0, n, (4,))),
    {more}
)
"""


@pytest.mark.nightly
def test_an_op_that_does_not_need_all_of_its_bytes_is_no_cheat(bench, tmp_path):
    """Eager does not need them either: then it is the record that is wrong, and it can say so."""
    loose = write_op(tmp_path / "a", op_py=LOOKUP.format(name="loose_rows", more=""), cpp=None)
    done = bench(loose, "--shapes", "20000", "--peers", "eager", "--json", tmp_path / "a.json")
    assert done.code == 0, done.out + done.err
    assert "the record counts too many bytes; give it bytes=" in done.out
    more = "bytes=lambda: 2 * 4 * 512 * 4,"
    exact = write_op(tmp_path / "b", op_py=LOOKUP.format(name="exact_rows", more=more), cpp=None)
    done = bench(exact, "--shapes", "20000", "--peers", "eager", "--json", tmp_path / "b.json")
    assert done.code == 0, done.out + done.err
    assert "the record counts" not in done.out
    assert rows_of(tmp_path / "b.json")["opforge"].bytes == 16384


def test_a_reference_that_raises_at_one_shape_leaves_the_others_their_times(bench, tmp_path):
    record = """\
        import torch
        from opforge import Op

        def reference(x):
            if x.numel() > 5000:
                raise ArithmeticError("too much for me")
            return 2 * x

        op = Op(schema="shy(Tensor x) -> Tensor y", reference=reference, dtypes=(torch.float32,),
                sized=lambda make, *shape: (make(*shape),))
        """
    folder = write_op(tmp_path / "shy", op_py=record, cpp=None)
    done = bench(folder, "--shapes", "16x64,128x64", "--peers", "eager")
    assert done.code == 2
    assert "128 × 64, opforge: ArithmeticError: too much for me" in done.out
    assert "16 × 64" in done.out
    assert "an op could not be timed: see the errors above" in done.err


PICKY = """\
class Picky(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return (2 * x).t().contiguous().t()

    @staticmethod
    def backward(ctx, grad):
        if grad.is_contiguous():
            raise ValueError("rows follow each other, and in my result columns do")
        return 2 * grad
"""


def test_gradients_lie_in_memory_as_the_results_do(bench, tmp_path):
    """Others would be copied first, which is not what a backward costs."""
    reference = "lambda x: (2 * x).t().contiguous().t()"
    folder = write(tmp_path, "turned", PICKY, reference, picky="lambda: lambda x: Picky.apply(x)")
    file = tmp_path / "turned.json"
    done = bench(folder, "--shapes", SIZE, "--backward", "--peers", "picky", "--json", file)
    assert done.code == 0, done.out + done.err
    rows = [row for row in results.read(file).rows if row.implementation == "picky"]
    assert [bool(row.us) for row in rows] == [True, True], done.out


def test_gradients_lie_as_the_record_promises_results_to(bench, tmp_path):
    """Its reference may come to another layout, as PyTorch's norms of images do on a GPU."""
    record = f"""\
import torch
from opforge import Op

{PICKY}

op = Op(
    schema="promised(Tensor x) -> Tensor y",
    reference=lambda x: (2 * x).contiguous(),
    dtypes=(torch.float32,),
    like="x",
    sized=lambda make, rows, cols: (make(cols, rows).t(),),
    peers={{"picky": lambda: lambda x: Picky.apply(x)}},
)
"""
    folder, file = write_op(tmp_path / "promised", op_py=record, cpp=None), tmp_path / "out.json"
    done = bench(folder, "--shapes", SIZE, "--backward", "--peers", "picky", "--json", file)
    assert done.code == 0, done.out + done.err
    rows = [row for row in results.read(file).rows if row.implementation == "picky"]
    assert [bool(row.us) for row in rows] == [True, True], done.out


def test_a_gate_without_anything_to_compare_with_is_a_mistake(bench):
    done = bench("relu", "--shapes", "8x8", "--peers", "none", "--fail-below", "0.9")
    assert done.code == 2
    assert "--fail-below needs something to compare with" in done.err


def test_a_record_may_not_call_a_peer_by_the_name_of_the_op_itself():
    with pytest.raises(RecordError, match="names a peer 'eager', which is reserved for"):
        Op(
            schema="f(Tensor x) -> Tensor y",
            reference=torch.abs,
            peers={"eager": lambda: torch.abs},
        )


# --- what it refuses, before anything is timed ----------------------------------------------------

REFUSED = {
    "an unknown op": (["nonsense"], "'nonsense' is neither a built-in op (bias_"),
    "a bad shape": (["relu", "--shapes", "8by8"], "'8by8' is not a shape; write it as 8192x8192"),
    "no such shape": (["relu", "--shapes", "0x8"], "nothing to time at 0x8: it has no element"),
    "a shape the op lacks": (
        ["matrix", "--shapes", "8"],
        "matrix is benchmarked at shapes of 2 numbers; got 8",
    ),
    "a shape the op refuses": (
        ["refusing", "--shapes", "7"],
        "refusing does not take shape 7: x must be even",
    ),
    "an unknown dtype": (
        ["relu", "--dtype", "float7"],
        "relu does not take dtype 'float7'; it takes float32, float16, bfloat16, float64",
    ),
    "a dtype the op lacks": (["relu", "--dtype", "int32"], "relu does not take dtype 'int32'"),
    "an unknown peer": (
        ["relu", "--shapes", "8x8", "--peers", "eager,nobody"],
        "relu: unknown peer 'nobody'; choose from eager, torch.compile",
    ),
    "an unknown device": (["relu", "--on", "tpu"], "--on tpu: choose cpu or cuda"),
    "results that are not there": (["relu", "--against", "no.json"], "no results at no.json"),
    "damaged results": (["relu", "--json", "bad.json"], "bad.json is damaged, it is not JSON"),
    "damaged results in a folder": (["relu", "--json", "."], "relu.json is damaged, it is not"),
    "newer results": (["relu", "--json", "new.json"], "new.json is from a newer opforge"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_it_refuses_in_one_line(bench, tmp_path, monkeypatch, what):
    arguments, text = REFUSED[what]
    monkeypatch.chdir(tmp_path)
    Path("bad.json").write_text("{")
    Path("relu.json").write_text("{")
    Path("new.json").write_text(json.dumps({"schema": 99, "runs": {}, "rows": []}))
    records = {
        "matrix": "sized=lambda make, rows, columns: (make(rows, columns),),",
        "refusing": "sized=lambda make, n: (make(n),), validate=even,",
    }
    for name, more in records.items():
        if name in arguments:
            unique = f'''
                import torch
                from opforge import Op
                def even(x):
                    if x.numel() % 2:
                        raise ValueError("x must be even")
                op = Op(schema="{name}(Tensor x) -> Tensor y", reference=torch.abs, {more})
                '''
            arguments = [str(write_op(tmp_path / name, op_py=unique, cpp=None)), *arguments[1:]]
    monkeypatch.setattr(clock.CpuClock, "turn", None)  # nothing may be timed
    done = bench(*arguments)
    assert done.code == 2
    assert done.err.startswith("opforge: ")
    assert text in done.err
    assert done.err.count("\n") == 1
    assert done.out == ""


def test_cuda_without_a_gpu_is_refused(bench, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    done = bench("relu", "--on", "cuda")
    assert done.code == 2
    assert done.err.startswith("opforge: --on cuda: torch finds no CUDA GPU; run `opforge doctor`")
