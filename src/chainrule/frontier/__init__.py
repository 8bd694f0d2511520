"""Quality against speed: what each way of decoding gives for the time it takes."""
