"""Does a store keep what the contract promises? Asked of the user's own, before it matters."""
