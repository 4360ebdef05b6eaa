"""Ours and other proxies in front of the same OpenAI-compatible server."""
