"""Budgets: how much a tenant or a key may use in a period, kept to the token by all gateways together."""
