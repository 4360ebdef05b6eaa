"""The ledger's storage."""
