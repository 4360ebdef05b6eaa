"""From the ledger's quantities and a plan's prices to an invoice and its three forms."""
