"""What judging a submission costs, beside making it."""
