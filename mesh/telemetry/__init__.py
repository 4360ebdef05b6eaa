"""Traces, metrics and logs; the only place that imports opentelemetry."""
