"""What every test shares: hypothesis without a wall-clock deadline."""

from __future__ import annotations

from hypothesis import settings

# A shared machine makes single examples slow now and then; the test's own timeout is the bound.
settings.register_profile("house", deadline=None, print_blob=True)
settings.load_profile("house")
