"""The session store: one Protocol, two implementations."""
