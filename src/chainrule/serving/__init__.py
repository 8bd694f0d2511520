"""The server: an engine that decodes many requests at once, the HTTP interface on it, and the page."""
