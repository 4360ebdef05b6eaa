"""Who is served, by how much, and in which order: tenants, their limits and their fair shares."""
