"""Sessions on this gateway: found, owned, checkpointed."""
