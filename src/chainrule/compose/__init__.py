"""Models composed of trained models. Each is an autoregressive model: scored, decoded, saved and composed again."""
