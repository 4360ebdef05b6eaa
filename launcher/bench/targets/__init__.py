"""What a hop through the gateway costs, each figure beside its target."""
