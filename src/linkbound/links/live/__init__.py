"""Live links: what this host's links do, measured in child processes (L1-L6)."""
