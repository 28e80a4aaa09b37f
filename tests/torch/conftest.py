"""Keep DCP's notes of every single call out of what pytest captures: there are too many."""

from __future__ import annotations

import logging

from torch.distributed.checkpoint.logger import _dcp_logger

_dcp_logger.setLevel(logging.INFO)
