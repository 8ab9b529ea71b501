# SPDX-License-Identifier: Apache-2.0
"""`opforge bench`: peers, and ops that are wrong, fail, or need too much."""

from __future__ import annotations

import torch
from bench_runs import SIZE, rows_of, write
from helpers import CPU_CPP

from opforge.bench import inputs, results

# --- peers ----------------------------------------------------------------------------------------

PEERS = {
    "good": "lambda: lambda x: x + x",
    "absent": "nowhere",
    "broken": "nothing",
    "raising": "lambda: refuse",
    "asking": "lambda: lambda y: 2 * y",
    "wrong": "lambda: lambda x: 3 * x",
    "shapeless": "lambda: lambda x: 2 * x[:1]",
    "double": "lambda: lambda x: (2 * x, 2 * x)",
    "idle": "lambda: lambda x: None",
    "inexact": "lambda: lambda x: 2 * x * (1 + 2**-20 * (x == x.amax()))",  # one element
    "mutating": "lambda: lambda x: x.mul_(2).clone()",  # the last: nobody else is to blame
}

SAID = {  # in the row of a peer that is not timed
    "broken": "RuntimeError: cannot be loaded",
    "raising": "ValueError: not with me",
    "asking": "RecordError: the record of bench_peers: what peers['asking'] returns asks for 'y'",
    "wrong": "wrong: bench_peers: error ",
    "shapeless": "wrong: bench_peers: shape (1, 256), not (128, 256)",
    "double": "wrong: bench_peers: 2 results, not 1",
    "idle": "wrong: bench_peers: the reference has one, the op has none",
    "mutating": "cheats: it changes its inputs",
}


def test_only_peers_that_work_are_timed_and_the_others_say_why_not(bench, tmp_path):
    before = """
def nowhere():
    import a_package_that_nobody_has

def nothing():
    raise RuntimeError("cannot be loaded\\nat all")

def refuse(x):
    raise ValueError("not with me")
"""
    op, file = write(tmp_path, "bench_peers", before, **PEERS), tmp_path / "r.json"
    done = bench(op, "--shapes", SIZE, "--peers", ",".join(PEERS), "--json", file)
    assert done.code == 0, done.out + done.err
    rows = rows_of(file)
    assert set(rows) == {"opforge", *PEERS} - {"absent"}
    assert "absent" not in done.out
    for name in ("opforge", "good", "inexact"):
        assert rows[name].error == ""
        assert rows[name].us > 0
    for name, text in SAID.items():
        assert rows[name].error.startswith(text)
        assert rows[name].us is None
        assert f"128 × 256, {name}: {rows[name].error}" in done.out
    assert rows["good"].note == ""
    assert rows["inexact"].note.startswith("less exact than opforge check allows: bench_peers: ")
    assert f"128 × 256, inexact: {rows['inexact'].note}" in done.out


def test_a_peer_without_gradients_has_no_backward(bench, tmp_path):
    op = write(tmp_path, "bench_no_gradient", detached="lambda: lambda x: 2 * x.detach()")
    file = tmp_path / "r.json"
    done = bench(op, "--shapes", SIZE, "--peers", "detached", "--backward", "--json", file)
    assert done.code == 0, done.out + done.err
    rows = {(r.direction, r.implementation): r for r in results.read(file).rows}
    assert rows["forward", "detached"].us > 0
    assert "does not require grad" in rows["backward", "detached"].error
    assert rows["backward", "opforge"].us > 0


def test_a_time_in_which_the_bytes_cannot_be_moved_is_not_believed(bench, tmp_path):
    op = write(tmp_path, "bench_copy", reference="lambda x: x.clone()", no="lambda: lambda x: x")
    file = tmp_path / "r.json"
    done = bench(op, "--shapes", "1024x2048", "--peers", "no", "--json", file)
    assert done.code == 0, done.out + done.err
    rows = rows_of(file)
    assert rows["opforge"].error == ""
    assert rows["no"].error.startswith("impossible: ")
    assert "µs, but moving the necessary bytes takes at least" in rows["no"].error
    assert "×" not in done.out.splitlines()[2].replace("1024 × 2048", "")  # compared with nobody


# --- ops that are wrong, fail, or need too much ---------------------------------------------------


def test_a_wrong_kernel_is_a_fault_and_is_not_timed(bench, tmp_path, untried):
    op = write(tmp_path, "bench_wrong", cpp=CPU_CPP.format(name="bench_wrong", factor=3))
    file = tmp_path / "r.json"
    done = bench(op, "--shapes", SIZE, "--peers", "eager", "--json", file)
    assert done.code == 1
    rows = rows_of(file)
    assert rows["opforge"].error.startswith("wrong: bench_wrong: error ")
    assert "32768 of 32768 elements are wrong" in done.out
    assert rows["opforge"].us is None
    assert rows["eager"].us > 0


def test_an_op_that_fails_could_not_be_timed(bench, tmp_path):
    op = write(tmp_path, "bench_failing", cpp="#error not yet\n")
    done = bench(op, "--shapes", SIZE, "--peers", "eager")
    assert done.code == 2
    assert "128 × 256, opforge: BuildError: " in done.out
    assert done.err.endswith("opforge: an op could not be timed: see the errors above\n")
    nothing = bench(op, "--shapes", SIZE, "--peers", "none")
    assert nothing.code == 2
    assert nothing.err.endswith("opforge: nothing could be timed: see the errors above\n")


# More bytes than a process can address, so that no machine has them.
TOO_LARGE = "268435456x134217728"


def test_out_of_memory_is_said_in_the_row_and_the_others_go_on(bench, tmp_path):
    before = """
def greedy(x):
    if x.shape[0] == 64:
        raise torch.OutOfMemoryError("no more")
    return 2 * x

def absent():
    raise ImportError
"""
    op = write(tmp_path, "bench_memory", before, greedy="lambda: greedy", absent="absent")
    file = tmp_path / "r.json"
    done = bench(op, "--shapes", f"{TOO_LARGE},64x64,32x64", "--peers", "greedy,absent",
                 "--json", file)  # fmt: skip
    assert done.code == 0, done.out + done.err
    errors = {(r.shape[0], r.implementation): r.error for r in results.read(file).rows}
    assert errors == {
        (268435456, "opforge"): "out of memory",
        (268435456, "greedy"): "out of memory",
        (64, "opforge"): "",
        (64, "greedy"): "out of memory",
        (32, "opforge"): "",
        (32, "greedy"): "",
    }
    assert "64 × 64, greedy: out of memory" in done.out


def test_inputs_for_which_a_gpu_has_no_memory_are_said(bench, monkeypatch):
    real = inputs.DeviceMake.__call__

    def make(self, *shape):
        if shape == (64, 64) and self.device != "meta":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB.")
        return real(self, *shape)

    monkeypatch.setattr(inputs.DeviceMake, "__call__", make)
    done = bench("relu", "--shapes", f"64x64,{SIZE}", "--peers", "eager")
    assert done.code == 0, done.out + done.err
    assert "64 × 64, opforge: out of memory" in done.out
    assert "64 × 64, eager: out of memory" in done.out
    assert done.out.count("out of memory") == 2
    only = bench("relu", "--shapes", "64x64", "--peers", "eager")
    assert only.code == 2
    assert only.err.endswith("opforge: nothing could be timed: see the errors above\n")
