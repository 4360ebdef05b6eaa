"""Which way of charging is cheapest for traffic that really was: access logs against a plan."""
