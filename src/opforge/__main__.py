# SPDX-License-Identifier: Apache-2.0
"""``python -m opforge`` is the ``opforge`` command."""

from opforge.cli import main

main()
