"""Which family is best for this data and this budget? Train each, score all on the same bytes, say which to pick."""
