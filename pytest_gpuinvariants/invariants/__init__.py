"""Pure rules: events in, findings out.  No torch, no GPU."""
