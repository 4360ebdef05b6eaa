"""Pure rules that gateway and router service share: affinity, scoring."""
