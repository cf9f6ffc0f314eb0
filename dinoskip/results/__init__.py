"""Results: rows, records of single images, and estimates from them."""
