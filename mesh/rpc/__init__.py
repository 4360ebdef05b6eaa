"""gRPC set-up that both sides agree on."""
