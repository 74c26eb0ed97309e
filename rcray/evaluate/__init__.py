"""Evaluation: what a finished run did to the model, on pairs it was not trained on."""
