# SPDX-License-Identifier: Apache-2.0
"""The pytest plugin behind ``opforge.testing.matrix``.

The rows of an op run in a worker process. A kernel that crashes is therefore one failed test, and
pytest goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def opforge_checks() -> Iterator[Callable[..., None]]:
    """A function that runs one row of an op and passes, fails or skips the test accordingly."""
    # Imported here, because every pytest run loads this plugin once opforge is installed.
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
                while workers:  # tests of one op come together, and a process takes half a GB
                    workers.popitem()[1].close()
                broken.update(runner.build([record], options))
                workers[key] = Worker(options)
            if text := broken.get(record, {}).get(place):
                raise Impossible(text)
            result = workers[key].run(record, row, place)
        except Impossible as error:
            pytest.fail(f"{record.name} could not be checked: {error}", pytrace=False)
        if result.outcome == results.FAILED:
            pytest.fail(f"{result.text}\n\nto reproduce it:\n{result.script}", pytrace=False)
        if result.outcome != results.PASSED:
            pytest.skip(f"{result.outcome}: {result.text}")

    yield run
    for worker in workers.values():
        worker.close()
