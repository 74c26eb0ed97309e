"""Aggregation: finished runs become tables, figures and one HTML page."""
