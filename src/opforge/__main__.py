# SPDX-License-Identifier: Apache-2.0
"""Runs the ``opforge`` command for ``python -m opforge``."""

from opforge.cli import main

main()
