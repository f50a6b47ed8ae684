"""Grid plan, runs on one machine or on Ray, summary and the paper's tables."""
