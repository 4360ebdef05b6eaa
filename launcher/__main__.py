"""`python -m launcher` is the `seedance` command."""

from launcher.cli import main

main()
