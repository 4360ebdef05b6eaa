"""What waits to be written on one call, between the engine's thread and the event loop."""

from __future__ import annotations

import threading

from inference.engine.answer import Piece
from inference.engine.messages import CallOutput, Pressure, StreamKey, Tokens
from inference.engine.messages import Failed as Failed

__all__ = ["Outbox", "OutboxBatch"]

# A call whose other end lags by this much is held: its sequences pause until it has caught up.
TOKENS_MAX = 16_384
TEXT_BYTES_MAX = 1024 * 1024
ENDS_MAX = 8_192
# Most text in one message, well under the transport's bound.
MESSAGE_TEXT_BYTES_MAX = 2 * 1024 * 1024
