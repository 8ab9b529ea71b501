# SPDX-License-Identifier: Apache-2.0
"""The rows of the scoreboard, grouped by subject."""
