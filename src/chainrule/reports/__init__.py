"""What the pages of reports have in common: charts, numbers for readers, a style sheet, and the page around them."""
