"""Models composed of models. Each is autoregressive itself: scored, decoded, saved, loaded and composed again."""
