# SPDX-License-Identifier: Apache-2.0
"""Ops for scripts and notebooks: from strings, from cells, and rebuilt when a source changes."""
