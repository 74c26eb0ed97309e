"""What is kept of runs: one type, one reader and one writer for each file, and one vocabulary of states."""
