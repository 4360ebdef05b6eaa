"""Price plans: what a plan file may say, read strictly, and nothing that does I/O."""
