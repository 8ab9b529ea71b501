# SPDX-License-Identifier: Apache-2.0
"""``python -m opforge.integrations.deepspeed``: DeepSpeed's report with ops in it.

``ds_report`` reads the list of ops in a process of its own, and imports nothing but deepspeed. So
the report is made here, by the same function, after the ops were registered.
"""

from __future__ import annotations

import sys

import typer

from opforge.errors import OpforgeError
from opforge.terminal.options import Ops, records_of

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def deepspeed() -> None:
    """Ops in DeepSpeed."""  # with this function, the command has a name though it is the only one


@app.command()
def report(ops: Ops = None) -> None:
    """Print what ds_report prints, with these ops.

    Example: python -m opforge.integrations.deepspeed report rms_norm path/to/my_op
    """
    from opforge.integrations.deepspeed import register

    register(*records_of(ops))
    from deepspeed import env_report

    env_report.main()


def main() -> None:
    """Run the command. An expected error prints one line and exits with 2."""
    try:
        app()
    except (OpforgeError, OSError) as error:
        print(f"opforge: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
