"""`rcray diagnose`: which pairs will hurt, before anything is trained."""
