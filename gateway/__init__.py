"""The gateway service: client frames to gRPC streams and back."""
