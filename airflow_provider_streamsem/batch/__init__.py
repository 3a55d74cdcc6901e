"""A batch from its spec to its answer: :mod:`pipeline` is the spec, :mod:`run` the whole order on one page."""
