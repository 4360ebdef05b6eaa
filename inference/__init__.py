"""The inference service: an engine behind gRPC."""
