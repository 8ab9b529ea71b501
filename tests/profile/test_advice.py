# SPDX-License-Identifier: Apache-2.0
"""Each rule of opforge profile speaks where it should, and is silent one fact away from it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from opforge.profile import advice
from opforge.profile.facts import Access, Call, Kernel
from opforge.terminal.words import percent, seconds, size

# At half the bandwidth, for no reason that a rule knows.
CALM = Kernel(
    "k",
    seconds=1e-3,
    read=1e9,
    written=1e9,
    dram_share=0.5,
    compute_share=0.3,
    occupancy=0.9,
    occupancy_possible=1.0,
    waves=10.0,
    stalls={"wait": 0.5, "selected": 0.5},
    loads=Access(16.0, 16.0),
    stores=Access(16.0, 16.0),
    bank_conflicts=0.0,
    local_bytes=0.0,
)


def call(model: int = 2_000_000_000, **facts: Any) -> Call:
    """A call of one kernel that differs from the calm one in these facts."""
    return Call("forward", model, [replace(CALM, **facts)])


def test_where_nothing_stands_out_it_says_so() -> None:
    assert not [r.__name__ for r in advice.RULES if r(call())]
    assert advice.advise(call()) == ["Nothing stands out; start with the largest stall above."]
    unknown = Call("as compiled", None, [Kernel("k")])
    assert advice.advise(unknown) == ["Nothing stands out; measure it on a GPU."]
    assert advice.advise(Call("backward", 0, [])) == [
        "No kernel is launched, so there is nothing to make faster."
    ]


def test_at_the_limit_nothing_else_matters() -> None:
    near = call(dram_share=0.85, stalls={"long_scoreboard": 0.9})
    (text,) = advice.advise(near)
    assert "85% of the peak memory bandwidth" in text
    assert "fewer bytes" in text
    assert advice.at_the_limit(call(dram_share=0.79)) is None
    # At the peak with bytes it need not move there is much to gain.
    wasteful = call(model=1_000_000_000, dram_share=0.85)
    assert advice.at_the_limit(wasteful) is None
    assert "2 times the necessary bytes" in advice.advise(wasteful)[0]


SPEAKS: list[tuple[advice.Rule, dict[str, Any], str]] = [
    (advice.extra_traffic, {"model": 1_200_000_000}, "the necessary bytes, 2 GB, not 1.2 GB"),
    (
        advice.extra_traffic,
        {"model": 1_200_000_000, "loads": Access(32.0, 4.0)},
        "sectors are only partly used",
    ),
    (advice.uncoalesced, {"loads": Access(32.0, 4.0)}, "loads of k touch 32.0 .* where 4.0"),
    (advice.uncoalesced, {"stores": Access(6.0, 4.0)}, "stores of k touch 6.0"),
    (advice.spills, {"local_bytes": 1e8}, "moves 100 MB of local memory"),
    (
        advice.spills,
        {"stack_bytes": 56, "with_stack": 1, "instances": 3, "instructions": {"local": 4}},
        "up to 56 bytes per thread in local memory in 1 of its 3 instances",
    ),
    (advice.few_blocks, {"waves": 0.4}, "fills 40% of the GPU"),
    (advice.short_kernel, {"seconds": 3e-6}, "At 3 µs the launch costs"),
    (advice.in_cache, {"model": 4_000_000_000}, "Only 2 GB of 4 GB go through DRAM"),
    (
        advice.more_in_flight,
        {"stalls": {"long_scoreboard": 0.6}},
        "60% of the time at 50% .*several independent loads",
    ),
    (
        advice.more_in_flight,
        {"stalls": {"long_scoreboard": 0.6}, "occupancy": 0.2, "limited_by": "registers"},
        r"occupancy of 20% \(use fewer registers",
    ),
    (advice.narrow_loads, {"loads": Access(4.0, 4.0)}, "load 4 bytes at a time"),
    (advice.narrow_loads, {"loads": None, "load_width": 2}, "load 2 bytes at a time"),
    (
        advice.bank_conflicts,
        {"bank_conflicts": 0.6, "stalls": {"short_scoreboard": 0.2}},
        "60% of the shared memory passes",
    ),
    (advice.barriers, {"stalls": {"barrier": 0.4}}, "40% of its time at barriers"),
    (
        advice.arithmetic,
        {"compute_share": 0.8, "stalls": {"math_pipe_throttle": 0.5}},
        r"its instructions \(mostly: an arithmetic unit is busy\), at 80%",
    ),
]


@pytest.mark.parametrize(("rule", "facts", "message"), SPEAKS)
def test_a_rule_speaks(rule: advice.Rule, facts: dict[str, Any], message: str) -> None:
    text = rule(call(**facts))
    assert text
    assert re.search(message, text)
    assert text in advice.advise(call(**facts))


@pytest.mark.parametrize(
    ("rule", "facts"),
    [
        (advice.extra_traffic, {"model": 1_900_000_000}),
        (advice.extra_traffic, {"model": 20_000, "read": 5e4, "written": 0.0}),  # noise
        (advice.uncoalesced, {"loads": Access(4.9, 4.0)}),
        (advice.spills, {"local_bytes": 1e7}),
        (advice.spills, {"stack_bytes": 56, "instructions": {"local": 0}}),
        (advice.few_blocks, {"waves": 1.0}),
        (advice.short_kernel, {"seconds": 6e-6}),
        (advice.in_cache, {"model": 2_100_000_000}),
        (advice.in_cache, {"model": 4_000_000_000, "seconds": None}),  # simulated
        (advice.more_in_flight, {"stalls": {"long_scoreboard": 0.29}}),
        (advice.more_in_flight, {"stalls": {"long_scoreboard": 0.6}, "dram_share": None}),
        (advice.narrow_loads, {"loads": Access(4.0, 4.0), "dram_share": 0.9}),
        (advice.narrow_loads, {"loads": Access(14.8, 14.3)}),
        (advice.bank_conflicts, {"bank_conflicts": 0.6, "stalls": {"wait": 1.0}}),
        (advice.bank_conflicts, {"bank_conflicts": 0.1, "stalls": {"short_scoreboard": 0.2}}),
        (advice.barriers, {"stalls": {"barrier": 0.2}}),
        (advice.arithmetic, {"compute_share": 0.8, "dram_share": 0.9}),
        (advice.arithmetic, {"compute_share": 0.5}),
    ],
)
def test_a_rule_is_silent(rule: advice.Rule, facts: dict[str, Any]) -> None:
    assert rule(call(**facts)) is None


def test_no_rule_needs_a_fact_that_may_be_missing() -> None:
    for rule in (*advice.RULES, advice.at_the_limit):
        assert rule(Call("forward", None, [Kernel("k")])) is None
        assert rule(Call("forward", 8, [])) is None


def test_counts_of_the_simulator_are_exact_to_a_few_kilobytes() -> None:
    simulated = call(model=20_000, read=5e4, written=0.0, seconds=None)
    assert "2.5 times the necessary bytes" in (advice.extra_traffic(simulated) or "")


def test_it_says_three_things_at_most() -> None:
    bad = call(
        model=1_000_000_000,
        loads=Access(32.0, 4.0),
        local_bytes=1e9,
        waves=0.1,
        stalls={"long_scoreboard": 0.5, "barrier": 0.4},
    )
    assert len([r for r in advice.RULES if r(bad)]) > 3
    assert len(advice.advise(bad)) == 3


def test_every_rule_is_tested_and_documented() -> None:
    names = {r.__name__ for r in advice.RULES}
    assert {rule.__name__ for rule, _, _ in SPEAKS} == names
    page = (Path(__file__).parents[2] / "docs" / "profile.md").read_text()
    documented = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    assert documented == ["at_the_limit", *(r.__name__ for r in advice.RULES)]


def test_numbers_are_readable() -> None:
    assert (size(0), size(999), size(1e3), size(134e6)) == ("0 B", "999 B", "1 KB", "134 MB")
    assert size(4.08e12) == "4.08 TB"
    assert (seconds(65.472e-6), seconds(2.2e-3), seconds(3.0)) == ("65.5 µs", "2.2 ms", "3 s")
    assert (percent(0.884), percent(0.058), percent(0)) == ("88%", "5.8%", "0%")
