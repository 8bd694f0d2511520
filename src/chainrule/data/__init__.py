"""From a data spec to batches: source -> corpus (encoded, memory-mapped) -> feed (deterministic, resumable).

source.py       what every source of text can do; parts, normalisation
text.py         files, folders, globs, standard input: plain, compressed, JSON lines, Parquet
builtin.py      texts that come with Python
hub.py          Hugging Face datasets, local or from the hub
cache.py        what has been computed once, under its fingerprint
corpus.py       tokens on disk; splitting and preparing training data
permutation.py  a random order without a table
batching.py     windows, lanes and documents as batches
"""
