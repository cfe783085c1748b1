"""The training half of PRIME-RL: advantages, the GRPO loss, batches, the policy, checkpoints and the learner."""
