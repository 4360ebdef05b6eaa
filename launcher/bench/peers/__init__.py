"""Our engine beside others' on the same model, prompts and machine, in one run (`make bench-engine`)."""
