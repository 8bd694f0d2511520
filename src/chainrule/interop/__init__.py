"""The file formats of other tools."""
