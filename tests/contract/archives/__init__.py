"""Archives: what each must give, by every way of reading it."""
