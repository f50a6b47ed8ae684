"""Classification and survival: losses over a window of bags, predictions, metrics.

One rule for input on which a metric does not exist (one class, no comparable pair, no bag): InputError, with the
remedy. Whether it exists depends on the targets alone, so `Task.check` tells before training starts. A metric that
exists for some classes only is computed over those, and `Task.caveats` names the others.
"""
