"""What every service shares, and nothing else."""
