# SPDX-License-Identifier: Apache-2.0
"""Ops as parts of other frameworks."""
