"""The command line: the whole mesh on one machine, each service alone, and the tools."""
