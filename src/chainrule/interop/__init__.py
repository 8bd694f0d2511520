"""Import and export in the file formats of other tools."""
