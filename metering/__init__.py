"""The metering service: usage events become a ledger that counts each once."""
