"""The model: the only code here that imports torch."""
