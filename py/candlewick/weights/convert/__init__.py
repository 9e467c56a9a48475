"""Foreign checkpoints -> ours. The only place where a tensor gets another name."""
