# SPDX-License-Identifier: Apache-2.0
"""The museum of wrong kernels: the simulator names each planted bug, and lets its twin pass.

A folder under ``wrong_kernels/`` is an op whose kernel is there twice: ``wrong.cuh`` has the bug
the folder is named after, ``right.cuh`` is the same kernel without it.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import PATIENCE
from op_cases import nightly_but

from opforge import discover, sim
from opforge.errors import SimulationError
from opforge.op import Make, Op

pytestmark = pytest.mark.sim

MUSEUM = Path(__file__).parents[1] / "wrong_kernels"
Folders = Callable[[str, str], Path]

# What `opforge sim` has over sim.run: a process with AddressSanitizer, and bits compared.
COMMANDS = {"asan": ["--asan"], "orders": []}
WHO = r"thread \(\d+,0,0\) of block \(\d+,0,0\)"


@dataclass(frozen=True)
class Fault:
    """What must be said about a wrong kernel."""

    kind: str
    said: str  # a regular expression for what follows
    at: str | None  # the line of wrong.cuh that must be pointed to
    mode: str = "race"
    seconds: int = 60  # that a block may take


FAULTS = {
    "atomics_without_initialisation": Fault(
        "uninitialised", f"{WHO} reads global memory .*which nothing wrote", "atomicAdd(y, sum)"
    ),
    "barrier_in_divergent_code": Fault(
        "barrier",
        f"threads of a block wait at different barriers.*{WHO}",
        "__syncthreads();  // the next",
    ),
    "beyond_launch_bounds": Fault(
        "launch-bounds",
        r"kernel doubled is launched with 512 threads .* but says __launch_bounds__\(256\)",
        None,
        mode="plain",
    ),
    "divergent_shuffle": Fault(
        "deadlock", rf"no thread of block \(0,0,0\) can go on.*{WHO}", "__shfl_down_sync("
    ),
    "early_exit": Fault(
        "early-exit",
        r"14 threads of block \(0,0,0\) exited before the others wait",
        "__syncthreads();",
    ),
    "endless_loop": Fault(
        "timeout", f"{WHO} is still running after 1 s", "while (", mode="plain", seconds=1
    ),
    "inactive_lane": Fault(
        "shuffle", f"{WHO} reads lane 20, which has exited", "__shfl_down_sync("
    ),
    "index_overflow_31": Fault(
        "index-overflow", f"{WHO} overflows a signed integer", "(row + 1) * cols"
    ),
    "index_overflow_32": Fault(
        "index-overflow",
        rf"thread \(0,0,0\) of block \(16,0,0\) makes the index {2**32}, .* an unsigned int",
        "blockIdx.x * kPiece",
        mode="plain",
    ),
    "misaligned_vector_load": Fault(
        "misaligned",
        f"{WHO} accesses memory .* aligned to 16 bytes; the address is 8 bytes past",
        "Four*>(",
    ),
    "missing_await": Fault(
        "race", f"{WHO} reads .* {WHO} of the kernel before wrote, without await_previous", "= i <"
    ),
    "missing_barrier": Fault(
        "race",
        f"{WHO} reads shared memory .* that {WHO} wrote, .* barrier",
        "tile.value[threadIdx.x - 1]",
    ),
    "missing_cluster_sync": Fault(
        "race",
        rf"{WHO} reads shared memory .* that {WHO} wrote, with no cluster_sync\(\) between",
        "theirs[threadIdx.x]",
    ),
    "missing_fence": Fault(
        "missing-fence",
        f"{WHO} reads global memory .* that {WHO} wrote, .* without a __threadfence",
        "sum += partial[b]",
    ),
    "missing_syncwarp": Fault(
        "race",
        rf"{WHO} reads shared memory .* that {WHO} wrote, .* nor a __syncwarp\(\) between",
        "/ firsts.row[row]",
    ),
    "no_launch_bounds": Fault(
        "launch-bounds",
        r"kernel doubled is launched with 512 threads .* say __launch_bounds__\(512\)",
        None,
        mode="plain",
    ),
    "off_by_one_tail": Fault("out-of-bounds", WHO, "if (i <= n)", mode="asan"),
    "order_dependent_result": Fault(
        "order-dependent", r"\d of 3 elements change .* in another order", None, mode="orders"
    ),
    "out_of_bounds_bias": Fault("out-of-bounds", WHO, "= bias[i]", mode="asan"),
    "peer_exited": Fault(
        "not-running",
        rf"{WHO} .* shared memory of block \(\d,0,0\), which (has|may have) exited",
        None,
    ),
    "race_across_blocks": Fault(
        "race", f"{WHO} reads .* that {WHO} wrote, and nothing orders the two blocks", "*y += sum"
    ),
    "read_before_copy_landed": Fault(
        "race",
        rf"{WHO} reads shared memory .* that a bulk copy of {WHO} wrote, without a wait\(\)",
        "2.f * stage.value[i]",
    ),
    "refill_before_read": Fault(
        "race",
        rf"{WHO} reads shared memory .* a bulk copy of {WHO} .* asked for before it was read",
        "2.f * ring.value[stage][i]",
    ),
    "sent_but_not_awaited": Fault(
        "race",
        rf"{WHO} reads shared memory .* that {WHO} sent, without a wait\(\) for phase 0",
        "sum += mail.first[rank]",
    ),
    "shared_race_across_iterations": Fault(
        "race", f"{WHO} writes shared memory .* that {WHO} read, with no barrier", "= sum;"
    ),
    "stale_double_buffer": Fault(
        "race", f"{WHO} reads shared memory .* that {WHO} wrote, with no barrier", "half[next][k]"
    ),
    "stale_barrier_phase": Fault(
        "race",
        rf"{WHO} reads shared memory .* that a bulk copy of {WHO} .*wait\(\) for phase 1",
        "2.f * stage.value[i]",
    ),
    "uninitialised_accumulator": Fault(
        "uninitialised", f"{WHO} reads shared memory .*, which nothing wrote", "atomicAdd("
    ),
    "unwritten_tail": Fault(
        "unwritten", "36 of 100 elements .* never written, the first of them element 64", None
    ),
    "wrong_byte_count": Fault(
        "deadlock",
        r"no thread of block \(2,0,0\) can go on.* for phase 0 of the barrier .* 256 of 512",
        "wait(stage.full, 0)",
    ),
    "wrong_cluster_rank": Fault(
        "cluster", f"{WHO} asks for shared memory of rank 4 in a cluster of 4", "in_block("
    ),
    "wrong_shuffle_width": Fault(
        "shuffle", f"{WHO} shuffles with lane mask 16, .* width of 8", "__shfl_xor_sync("
    ),
}

# Other tests have kernels with most of these faults, many in one library.
BY_DAY = {fault.mode: name for name, fault in reversed(FAULTS.items())}.values()
by_night_but_one_of_each_mode = nightly_but(*BY_DAY, of=list(FAULTS))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """Op folders with one of the two kernels: ``folders("missing_barrier", "right")``."""

    @functools.cache
    def make(name: str, version: str) -> Path:
        folder = tmp_path_factory.mktemp(f"{name}_{version}")
        shutil.copy(MUSEUM / name / "cuda.cu", folder)
        shutil.copy(MUSEUM / name / f"{version}.cuh", folder / "kernel.cuh")
        # A namespace of its own, the same in every run, so that the cache has the library.
        record = (MUSEUM / name / "op.py").read_text()
        (folder / "op.py").write_text(f'{record}\nop.namespace = "{name}_{version}"\n')
        return folder

    return make


def load(folder: Path) -> Op:
    return discover.load_folder(folder).op


def simulate(op: Op, mode: Any, seed: int | None = None) -> list[Any]:
    return [sim.run(op, *case, mode=mode, seed=seed) for case in op.iter_cases(Make())]


def command(folder: Path, *options: str) -> str:
    """What ``opforge sim`` prints when it finds a fault, and nothing when it finds none."""
    done = subprocess.run(
        [sys.executable, "-m", "opforge", "sim", str(folder), *options],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**os.environ, "COLUMNS": "250"},
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout + done.stderr if done.returncode == 1 else ""


def found(folder: Path, mode: str) -> str:
    """What the simulator finds in an op folder: its faults, else its warnings, else nothing."""
    if mode in COMMANDS:
        return command(folder, *COMMANDS[mode])
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            simulate(load(folder), mode)
        except SimulationError as error:
            return str(error)
    texts = [str(w.message) for w in said]
    return "".join(text for text in texts if text.startswith("opforge simulator: "))


def test_every_folder_is_in_the_table() -> None:
    assert sorted(p.parent.name for p in MUSEUM.glob("*/op.py")) == sorted(FAULTS)
    assert len(FAULTS) >= 15


@by_night_but_one_of_each_mode
def test_the_fault_is_named(name: str, folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = FAULTS[name]
    monkeypatch.setenv("OPFORGE_SIM_TIMEOUT", str(fault.seconds))
    text = found(folders(name, "wrong"), fault.mode)
    # Every report starts with its kind; the lines that belong to it are indented further.
    reports = re.split(r"^(?:opforge simulator: )?\s*(?=[a-z-]+: )", text, flags=re.MULTILINE)
    mine = [r for r in reports if re.match(f"(?s){fault.kind}: {fault.said}", r)]
    assert mine, text
    if fault.at is not None:
        place = f"kernel.cuh:{line_of(name, fault.at)} in "
        assert any(f"at {place}" in report for report in mine), f"{place}is not in:\n{text}"


def line_of(name: str, code: str) -> int:
    lines = (MUSEUM / name / "wrong.cuh").read_text().splitlines()
    (number,) = [i for i, line in enumerate(lines, 1) if code in line]
    return number


@by_night_but_one_of_each_mode
@pytest.mark.nightly
def test_its_twin_raises_no_alarm(name: str, folders: Folders) -> None:
    folder = folders(name, "right")
    for mode in dict.fromkeys([FAULTS[name].mode, "race"]):
        assert found(folder, mode) == ""
    op = load(folder)
    assert op.reference is not None
    wanted = [op.reference(*case) for case in op.iter_cases(Make())]
    for seed in (None, 0, 1):
        torch.testing.assert_close(simulate(op, "race", seed), wanted)


@pytest.mark.nightly
def test_a_result_that_depends_on_the_order_of_threads(folders: Folders) -> None:
    """No access is wrong; but other orders give other bits."""
    for version, same in (("wrong", False), ("right", True)):
        op = load(folders("order_dependent_result", version))
        first, *others = [simulate(op, "race", seed)[0] for seed in (None, 0, 1, 2)]
        assert all(torch.equal(first, other) for other in others) is same
