"""Reward calibration inside other people's trainers; each module needs its own optional extra."""
