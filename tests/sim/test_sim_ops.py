# SPDX-License-Identifier: Apache-2.0
"""The built-in ops in the simulator: detectors, orders, launch overrides, far addresses, speed."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from helpers import PATIENCE, write_op
from op_cases import each_op, nightly_but, record

import opforge
from opforge import sim
from opforge.errors import KernelUnavailable
from opforge.op import Make, as_tuple
from opforge.sim import command, stats

pytestmark = pytest.mark.sim

TWICE = """
    #include <opforge/host.h>

    namespace opforge {

    // Every thread takes one element, `step` apart from its neighbour's.
    __global__ void copy(const float* x, float* y, int n, int step) {
      const int i = blockIdx.x * blockDim.x + threadIdx.x;
      const int at = i % (n / step) * step + i / (n / step);
      if (i < n) y[at] = x[at];
    }

    Tensor twice(const Tensor& x) {
      const DeviceGuard guard(x.get_device_index());
      const int n = int(x.numel());
      const Tensor y = empty(sizes(x), x);
      for (int pass = 0; pass < 2; ++pass) {
        launch(copy, {dim3(n / 256), dim3(256), current_stream(x)}, data<float>(x),
               mutable_data<float>(y), n, pass == 0 ? 1 : 32);
      }
      return y;
    }

    OPFORGE_IMPL(twice, twice)

    }  // namespace opforge
"""
TWICE_OP = """
    import torch
    from opforge import Op

    op = Op(
        schema="twice(Tensor x) -> Tensor y",
        reference=lambda x: x.clone(),
        backward=lambda grad_y: grad_y,
        dtypes=(torch.float32,),
        cases=lambda make: [(make(1024),), (make(4096),)],
    )
"""


def cli(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "opforge", "sim", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)


# The quick check's row `sanitizer` has the detectors for every op, in two dtypes.
@nightly_but("scale_bias_relu")
def test_detectors_find_no_fault(name):
    outcome = command.simulate(record(name), "race", None)
    assert outcome.runs > 50
    assert outcome.faults == []
    assert outcome.warnings == []


@pytest.mark.nightly
@each_op
def test_nothing_is_out_of_bounds(name):
    done = cli(name, "--asan")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no fault found" in done.stdout


# The quick check's row `repeats` has a hundred orders for every op, of one case.
@nightly_but("reduce_sum")
def test_twenty_orders_give_the_same_bits(name):
    op = record(name)
    cases = list(op.iter_cases(Make(torch.bfloat16)))[:4]
    with sim.active():
        right = [as_tuple(op(*case)) for case in cases]
    for seed in range(20):
        with sim.active(seed=seed):
            for case, results in zip(cases, right, strict=True):
                for a, b in zip(as_tuple(op(*case)), results, strict=True):
                    assert torch.equal(a, b), f"seed {seed}"


def test_the_command_runs_all_cases_and_says_so():
    done = cli("relu", "--seed", 5)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "relu: 88 runs, no fault found"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--race", "--asan"], "choose one of --asan, --race and --stats"),
        (["--seed", "-1"], "--seed"),
        (["--seed", str(2**62)], "--seed"),
        (["--stats", "--seed", "1"], "depend on the order of threads"),
    ],
)
def test_the_command_refuses_what_makes_no_sense(arguments, said):
    done = cli("relu", *arguments)
    assert done.returncode == 2
    assert said in done.stderr


def test_an_op_without_a_cuda_kernel_is_named(tmp_path):
    folder = write_op(tmp_path / "times", cu=None)
    done = cli(folder)
    assert done.returncode == 2
    assert "times has no CUDA source (*.cu)" in done.stderr
    assert cli(folder, "--stats").returncode == 2


@pytest.mark.nightly
def test_an_op_without_cases_is_named(tmp_path):
    empty = TWICE_OP.replace("[(make(1024),), (make(4096),)]", "[]")
    folder = write_op(tmp_path / "twice", op_py=empty, cpp=None, cu=TWICE)
    for option in ([], ["--stats"]):
        done = cli(folder, *option)
        assert done.returncode == 2
        assert "the record of twice yields no cases" in done.stderr


@pytest.mark.nightly
def test_an_op_that_refuses_its_own_case_is_a_fault(tmp_path):
    refusing = TWICE.replace(
        "const int n = int(x.numel());",
        """const int n = int(x.numel());
      OPFORGE_CHECK(n == 1024, "I take 1024 elements");""",
    )
    folder = write_op(tmp_path / "twice", op_py=TWICE_OP, cpp=None, cu=refusing)
    done = cli(folder)
    assert done.returncode == 1
    assert "twice float32 case 1\nI take 1024 elements" in done.stdout
    assert "to find the cause, run again with --race and with --asan" in done.stdout


@pytest.mark.parametrize(
    ("crash", "signal"),
    [
        ("abort();", "SIGABRT (an abort)"),
        ("*(volatile int*)8 = 1;", "SIGSEGV (an invalid memory access)"),
    ],
)
@pytest.mark.nightly
def test_a_kernel_that_crashes_is_a_fault_of_its_op_and_the_others_are_run(tmp_path, crash, signal):
    size = "const int n = int(x.numel());"
    crashing = TWICE.replace(size, f"{size} if (n == 4096) {crash}")
    text = TWICE_OP.replace("twice(", "crashing(")
    crashing = crashing.replace("OPFORGE_IMPL(twice", "OPFORGE_IMPL(crashing")
    wrong = write_op(tmp_path / "crashing", op_py=text, cpp=None, cu=crashing)
    right = write_op(tmp_path / "twice", op_py=TWICE_OP, cpp=None, cu=TWICE)
    done = cli(wrong, right)
    assert done.returncode == 1, done.stdout + done.stderr
    assert (
        "crashing float32 case 1\nthe process that ran the kernel is gone: "
        f"ended by {signal}; its later runs are left out\ncrashing: 3 runs, 1 fault\n"
        "twice: 4 runs, no fault found\n" in done.stdout
    )
    counted = cli(wrong, right, "--stats")
    assert counted.returncode == 1
    assert f"is gone: ended by {signal}" in counted.stdout
    assert "twice(4096) torch.float32: moves" in counted.stdout


def test_run_takes_functions_names_and_folders():
    x = torch.randn(3, 4)
    folder = Path(opforge.__file__).parent / "ops" / "reduce_sum"
    for op in (opforge.reduce_sum, "reduce_sum", folder):
        torch.testing.assert_close(sim.run(op, x), x.sum())
    assert sim.run(record("reduce_sum"), x, [0], True).shape == (1, 4)


def test_run_says_when_nothing_was_simulated():
    with pytest.raises(ValueError, match=r"relu was not simulated: it takes plain tensors on the"):
        sim.run("relu", torch.randn(3, device="meta"))


def test_without_jit_nothing_is_built(cache_dir, monkeypatch):
    monkeypatch.setenv("OPFORGE_JIT", "0")
    op = record("relu")
    with pytest.raises(KernelUnavailable, match=r"OPFORGE_JIT=0 forbids it; unset OPFORGE_JIT"):
        sim.runtime._built(sim.runtime.plan(op, "sim"))


def test_options_of_the_wrong_kind():
    for options in ({"device": "cpu"}, {"seed": 1.5}):
        with pytest.raises((TypeError, ValueError), match=r"must be a"), sim.active(**options):
            pass


def test_signed_zeros_are_different_bits():
    zeros = torch.tensor([0.0, -0.0])
    with pytest.raises(sim.SimulationError, match="order-dependent: 2 of 2"):
        command._compare_bits((zeros,), (-zeros,))


def test_far_apart_elements():
    """Two elements 2^31 apart; the pages between them are never touched."""
    base = torch.empty(2**31 + 64, dtype=torch.bfloat16)
    x = base[:: 2**31]
    x.copy_(torch.tensor([-1.0, 2.0]))
    with sim.active():
        assert opforge.relu(x).tolist() == [0.0, 2.0]
        assert opforge.reduce_sum(x).item() == 1.0
        assert opforge.vector_add(x, x).tolist() == [-2.0, 4.0]
        wide = base.as_strided((2, 3), (2**31, 1))
        wide.copy_(torch.ones(2, 3))
        assert (
            opforge.scale_bias_relu(wide, torch.ones(3).bfloat16(), 2.0).tolist() == [[3.0] * 3] * 2
        )


@pytest.mark.parametrize("block", [32, 128, 512, 1024])
def test_launch_overrides_change_no_elementwise_bit(block):
    x, bias = torch.randn(33, 129), torch.randn(129)
    arguments = {"relu": (x,), "vector_add": (x, bias), "scale_bias_relu": (x, bias, 0.5)}
    with sim.active():
        for name, args in arguments.items():
            right = getattr(opforge, name)(*args)
            for vec in (None, 1):
                with opforge.launch_config(name, block=block, vec=vec):
                    assert torch.equal(getattr(opforge, name)(*args), right)
        for rows in (1, 64):
            with opforge.launch_config("reduce_sum", block=min(block, 512), rows=rows):
                for dim in (0, 1, None):
                    exact = x.double().sum() if dim is None else x.double().sum(dim)
                    torch.testing.assert_close(
                        opforge.reduce_sum(x, dim).double(), exact, atol=1e-4, rtol=1e-5
                    )


def test_launch_config_without_gpu_or_simulator_says_what_it_needs(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with (
        pytest.raises(RuntimeError, match=r"needs a CUDA GPU or the simulator"),
        opforge.launch_config("relu", block=64),
    ):
        pass


def test_another_device_splits_the_work_in_another_way():
    x = torch.randn(3000, 8)
    with sim.active("race", traffic=True) as calls:
        opforge.reduce_sum(x, 0)
    with sim.active("race", traffic=True, device=sim.Device(multiprocessors=1)) as small:
        opforge.reduce_sum(x, 0)
    assert calls[0].launches[0].blocks > small[0].launches[0].blocks


@pytest.mark.parametrize(
    ("rows", "multiprocessors", "blocks", "threads"),
    [
        (1, 1, 1, 512),
        (2, 1, 2, 512),
        (5, 1, 8, 512),
        (16, 1, 16, 512),
        (1, 16, 16, 32),
        (3, 8, 8, 256),
        (3, 4, 4, 512),
    ],
)
def test_sums_of_few_rows_take_wide_tiles_and_one_kernel(rows, multiprocessors, blocks, threads):
    """As many threads of a block are stacked as there are rows, others go beside."""
    x, bias = Make(torch.bfloat16)(rows, 4096), torch.zeros(4096, dtype=torch.bfloat16)
    device = sim.Device(multiprocessors=multiprocessors)
    with sim.active("race", traffic=True, device=device) as calls:
        y = opforge.scale_bias_relu(x, bias.requires_grad_())
        (grad,) = torch.autograd.grad(y, bias, torch.ones_like(y))
    (sums,) = calls[-1].launches
    assert (sums.kernel, sums.blocks, sums.threads) == ("column_sums", blocks, threads)
    assert torch.equal(grad, (x > 0).sum(0).to(torch.bfloat16))


def test_one_kernel_for_rows_that_begin_within_a_sector():
    x = Make(torch.bfloat16)(3 * 4096 + 3)[3:].view(3, 4096)
    with sim.active("race", traffic=True) as calls:
        y = opforge.reduce_sum(x, 0)
    assert [one.kernel for one in calls[-1].launches] == ["column_sums"]
    assert torch.equal(y, x.float().sum(0).to(torch.bfloat16))


@pytest.mark.nightly
@pytest.mark.parametrize(("rows", "threads"), [(3, 512), (257, 256)])
def test_few_rows_have_two_vectors_to_a_thread_and_many_four(rows, threads):
    x = Make()(rows, 4096)
    weight, bias = torch.ones(4096), torch.zeros(4096)
    with sim.active("race", traffic=True) as norm:
        y = opforge.layer_norm(x, weight, bias)
    torch.testing.assert_close(y, torch.nn.functional.layer_norm(x, (4096,), weight, bias))
    with sim.active("race", traffic=True) as softmax:
        opforge.softmax(x.requires_grad_()).sum().backward()
    for calls in norm, softmax:
        assert calls[-1].launches[-1].kernel == "map_rows_kernel"
        assert calls[-1].launches[-1].threads == threads


class TestTraffic:
    def test_a_copy_is_counted_exactly(self):
        x = torch.randn(64, 256)
        with sim.active("race", traffic=True) as calls:
            opforge.relu(x)
        (call,) = calls
        (launch,) = call.launches
        size = x.numel() * 4
        assert call.model_bytes == call.moved_bytes == 2 * size
        assert (launch.bytes_read, launch.bytes_written) == (size, size)
        assert (launch.read_requests, launch.read_sectors) == (128, 2048)  # 512 bytes per warp
        assert launch.read_fewest == launch.read_sectors
        assert (launch.shared_requests, launch.barriers) == (0, 0)

    def test_barriers_and_shared_memory_are_counted(self):
        x = torch.randn(4, 20000)
        with sim.active("race", traffic=True) as calls:
            opforge.reduce_sum(x, 1)
        first = calls[0].launches[0]
        assert first.barriers == first.blocks
        assert first.shared_passes == first.shared_fewest > 0

    @pytest.mark.nightly
    def test_a_kernel_that_moves_too_much_is_named(self, tmp_path):
        folder = write_op(tmp_path / "twice", op_py=TWICE_OP, cpp=None, cu=TWICE)
        (call,) = stats.measure(opforge.discover.load_folder(folder).op, torch.float32)
        assert stats.verdict(call) == "moves 2.00 times the necessary bytes: 65.5 KB, not 32.8 KB"
        side_by_side, scattered = call.launches
        assert side_by_side.read_sectors == side_by_side.read_requests * 4
        assert scattered.read_sectors == scattered.read_requests * 32
        done = cli(folder, "--stats")
        assert done.returncode == 0, done.stderr
        assert "moves 2.00 times the necessary bytes" in done.stdout
        assert "sectors 32.0 (4.0)" in done.stdout


@pytest.mark.parametrize("mode", ["plain", "race"])
def test_the_time_of_a_row_kernel_is_linear_in_the_rows(mode):
    bias = torch.randn(512).bfloat16()
    few, many = (torch.randn(rows, 512).bfloat16() for rows in (256, 2048))
    for run in (
        lambda x: opforge.reduce_sum(x, 1),
        lambda x: opforge.reduce_sum(x, 0),
        lambda x: opforge.scale_bias_relu(x, bias, 0.5),
    ):

        def seconds(x, run=run):
            started = time.process_time()
            run(x)
            return time.process_time() - started

        with sim.active(mode):
            run(few)  # builds and loads
            assert seconds(many) < 8 * 4 * max(seconds(few), 1e-3)  # 4 for what else may happen


def test_the_documents_list_every_kind_of_fault():
    runtime = Path(sim.__file__).parent / "runtime"
    page = (Path(__file__).parents[2] / "docs" / "simulator.md").read_text()
    for source in runtime.glob("*.cpp"):
        for line in source.read_text().splitlines():
            for call in ('report("', 'warn("'):
                if call in line:
                    kind = line.split(call)[1].split('"')[0]
                    assert f"`{kind}`" in page, f"{kind} of {source.name}"
