# SPDX-License-Identifier: Apache-2.0
"""Where the C++ runtime is linked statically, a process has several; errors are still errors."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import REAL_CXX, python

# Everything is compiled again: the simulator, too.
pytestmark = pytest.mark.nightly

MUSEUM = Path(__file__).parents[1] / "wrong_kernels"


@pytest.fixture
def static(tmp_path: Path, cache_dir: Path) -> dict[str, str]:
    """An environment whose compiler links the C++ runtime statically."""
    wrapper = tmp_path / "g++"
    wrapper.write_text(f'#!/bin/sh\nexec {REAL_CXX} -static-libstdc++ "$@"\n')
    wrapper.chmod(0o755)
    return {"CXX": str(wrapper), "OPFORGE_CACHE_DIR": str(cache_dir)}


def test_bad_input_is_an_error_that_names_a_number(static: dict[str, str]) -> None:
    code = """
        import pytest, torch, opforge

        assert opforge.relu(torch.tensor([-1.0, 2.0])).tolist() == [0, 2]
        with pytest.raises(RuntimeError, match="^tensors of more than 64 dims are not supported$"):
            opforge.relu(torch.ones([1] * 65))
    """
    python(code, environment=static)


@pytest.mark.sim
def test_the_simulator_names_faults_and_launches(static: dict[str, str]) -> None:
    code = """
        import shutil, sys, tempfile
        from pathlib import Path
        import pytest, torch
        from opforge import discover, sim
        from opforge.errors import SimulationError
        from opforge.op import Make

        folder = Path(tempfile.mkdtemp(), "op")
        shutil.copytree(sys.argv[1], folder)
        shutil.move(folder / "wrong.cuh", folder / "kernel.cuh")
        op = discover.load_folder(folder).op
        case = next(op.iter_cases(Make()))
        with pytest.raises(SimulationError, match=r"thread \\(\\d+,0,0\\) of block \\(\\d+,0,0\\)"):
            sim.run(op, *case, mode="race")
        small = sim.Device(threads_per_block=32)
        with pytest.raises(RuntimeError, match=r"grid \\(4, 1, 1\\), block 64, 0 bytes of shared"):
            sim.run(op, *case, mode="race", device=small)
    """
    python(code, MUSEUM / "missing_barrier", environment=static)
