"""Shared parts of the HTML reports: charts, number formatting, the style sheet and the page layout."""
