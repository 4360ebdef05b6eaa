"""What a tenant used and owes, asked of metering: for its own eyes over HTTP, and for its budgets."""
