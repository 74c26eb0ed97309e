"""Models: the embedded tiny ones, loading, likelihoods, and the shared reference cache."""
