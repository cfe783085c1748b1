"""An update of the learner beside the same update by TRL's GRPOTrainer."""
