# SPDX-License-Identifier: Apache-2.0
"""What docs/generate.py writes, a module for each kind of page."""
