"""A link's timers (§4.2): resending waits for an empty transport, and never asks for the past."""

from __future__ import annotations

from seedance.protocol.delivery import RESEND_AFTER_MIN_S, Delivery, SessionRules
from seedance.protocol.effects import Send
from seedance.protocol.errors import ErrorCode
from seedance.protocol.frames import ErrorFrame


def _with_one_frame() -> Delivery:
    delivery = Delivery(SessionRules(), 0.0)
    delivery.up(windowed=True, now=0.0)
    delivery.sequenced(ErrorFrame(ErrorCode.BAD_REQUEST, "no", retryable=False), 0.0)
    delivery.out.clear()
    return delivery


def test_a_transport_that_is_not_empty_is_looked_at_again_later() -> None:
    """The resend that is due waits for the transport, and the next look lies in the future."""
    delivery = _with_one_frame()
    now = 0.0
    for _ in range(4):
        deadline = delivery.deadline(now)
        assert deadline is not None
        assert deadline > now
        now = deadline
        delivery.tick(now, idle=False)
    assert not [effect for effect in delivery.out if isinstance(effect, Send) and effect.seq]


def test_it_is_resent_once_the_transport_is_empty() -> None:
    """The leftmost frame leaves again at the first look that finds the transport empty."""
    delivery = _with_one_frame()
    delivery.tick(RESEND_AFTER_MIN_S, idle=False)
    deadline = delivery.deadline(RESEND_AFTER_MIN_S)
    assert deadline is not None
    delivery.tick(deadline, idle=True)
    assert [effect.seq for effect in delivery.out if isinstance(effect, Send)] == [1]
