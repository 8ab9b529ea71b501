# SPDX-License-Identifier: Apache-2.0
"""What commands print, and the processes they start."""
