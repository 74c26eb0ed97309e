"""AlpacaEval: answers to instructions, a judge that compares them in pairs, and win rates of it."""
