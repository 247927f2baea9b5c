"""Speed, memory and scaling against the peers."""
