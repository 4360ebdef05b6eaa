"""The engine's policy in plain Python: what runs in the next step, and what becomes of its tokens.

No torch, no gRPC, no asyncio: a laptop tests it in seconds.
"""
