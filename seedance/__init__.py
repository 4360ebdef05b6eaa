"""What a client of the mesh imports: the SDK, and the contract both ends speak."""

__version__ = "0.1.0"
