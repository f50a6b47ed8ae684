"""One visible loop: objective, schedule, checkpoint, evaluation, run folder."""
