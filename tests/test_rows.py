# SPDX-License-Identifier: Apache-2.0
"""Every row of the full `opforge check` for every built-in op, wherever this machine can run it."""

from __future__ import annotations

import torch

from opforge import discover, testing

PLACES = ["cpu", "sim", "cuda"] if torch.cuda.is_available() else ["cpu", "sim"]

for _name in discover.builtin_names():
    globals()[f"test_{_name}"] = testing.matrix(_name, on=PLACES, full=True)
