"""The router service: membership with leases, and the pure rule that picks an instance."""
