# SPDX-License-Identifier: Apache-2.0
"""Compiles what the tests by day use of the built-in ops, all side by side, before they start.

Run alone, a test builds what it needs by itself.
"""

from __future__ import annotations

from op_cases import OPS, SIMULATED, WHOLE

from opforge import discover
from opforge.build import compile
from opforge.build.plan import Plan, plan, plan_recorder, plan_simulator
from opforge.build.targets import has_sources

TARGETS = {"cpu": OPS, "sim": SIMULATED}
# What the rows that look for races and for code that no case reaches need beside.
TARGETS |= dict.fromkeys(("sim-race", "sim-cover", "cpu-cover"), WHOLE)


def plans() -> list[Plan]:
    found = [plan_simulator(), plan_recorder()]
    for target, names in TARGETS.items():
        ops = [discover.find(name) for name in names]
        found += [plan(op, target) for op in ops if has_sources(op, target)]
    return found


if __name__ == "__main__":
    # A trial takes a process with torch for each, and the tests load them all.
    compile._why_untried = lambda plan: "not tried: the tests load it"
    compile.build(plans())
