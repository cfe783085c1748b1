"""A learner update compared with the same update by TRL's GRPOTrainer."""
