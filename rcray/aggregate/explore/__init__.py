"""The page that answers questions: every cell of a store, selected in one view and followed in all others."""
