"""gRPC set-up that both sides agree on."""

import os

# The C core writes its own affairs (a peer that went away, a GOAWAY) to stderr unless told not to.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
