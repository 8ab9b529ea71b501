# SPDX-License-Identifier: Apache-2.0
"""Helpers of the commands: options, output, progress bars and child processes."""
