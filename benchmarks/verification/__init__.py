"""Cost of judging a submission, compared with making it."""
