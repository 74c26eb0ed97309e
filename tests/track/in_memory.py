"""Deliveries to the tracker in memory, and what it keeps of a cell."""

from rcray.track.delivery import Delivery, Plan

URI = "memory://tracker"


def delivery_to(tracker, store, cells, **settings):
    def draw(cell):
        return {"png": b"png of " + cell.run_id.encode(), "svg": b"<svg/>"}

    return Delivery(Plan("small", "A small grid", cells, **settings), store, lambda: tracker, URI, draw)


def kept(tracker, cell):
    found = [k for k in tracker.kept.values() if k.run.tags.get("rcray.run_id") == cell.run_id]
    assert len(found) == 1, "a cell has one run"
    return found[0]
