"""What every service shares, and nothing else."""

import os

# gRPC's C core reads this once, when it is imported: unless told otherwise it writes its own
# affairs (a peer that went away) to stderr, where a service's log is.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
