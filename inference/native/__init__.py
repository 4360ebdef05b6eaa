"""The model's step as one native function: built on this machine, used only where it builds."""
