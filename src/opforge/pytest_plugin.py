# SPDX-License-Identifier: Apache-2.0
"""The pytest plugin behind ``opforge.testing.matrix``.

Rows run in a worker process per op, so that a kernel that crashes is one failed test and not the
end of pytest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def opforge_checks() -> Iterator[Callable[..., None]]:
    """Runs a row of an op and turns its result into that of the test."""
    # Here and not above: the plugin is loaded in every pytest of whoever has opforge installed.
    from opforge import discover
    from opforge.check import results, runner
    from opforge.check.options import Options
    from opforge.check.process import Impossible, Worker

    workers: dict[tuple[int, Any], Worker] = {}
    broken: dict[Any, dict[str, str]] = {}

    def run(op: Any, options: Options, row: str, place: str) -> None:
        record = discover.record_of(op)
        key = id(record), options
        try:
            if key not in workers:
                while workers:  # tests of an op come together, and a process takes half a GB
                    workers.popitem()[1].close()
                broken.update(runner.build([record], options))
                workers[key] = Worker(options)
            if text := broken.get(record, {}).get(place):
                raise Impossible(text)
            result = workers[key].run(record, row, place)
        except Impossible as error:
            pytest.fail(f"{record.name} could not be checked: {error}", pytrace=False)
        if result.outcome == results.FAILED:
            pytest.fail(f"{result.text}\n\nto see it again:\n{result.script}", pytrace=False)
        if result.outcome != results.PASSED:
            pytest.skip(f"{result.outcome}: {result.text}")

    yield run
    for worker in workers.values():
        worker.close()
