"""Classification and survival: losses over a window of bags, predictions, metrics."""
