"""The OpenAI-shaped HTTP face."""
