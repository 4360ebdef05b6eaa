"""Shared calls to inference instances."""
