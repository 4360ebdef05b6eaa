"""The openai engine: any OpenAI-compatible server behind the mesh's own gRPC service."""
