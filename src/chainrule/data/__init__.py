"""From a data spec to batches: source -> corpus (encoded, memory-mapped) -> feed (deterministic, resumable).

source.py       what every source of text can do; parts, normalisation
text.py         files, folders, globs, standard input: plain, compressed, JSON lines, Parquet
builtin.py      texts that come with Python
hub.py          Hugging Face datasets, local or from the hub
cache.py        what has been computed once, under its fingerprint
corpus.py       tokens on disk; splitting and preparing training data
pairs.py        sources of pairs: two files, a table, records, the hub
cleaning.py     which pairs are fit to learn from, and what became of the others
parallel.py     both sides of the pairs as tokens; preparing training data for translation
permutation.py  a random order without a table
image_files.py  images from idx, arrays, folders of PNG and JPEG; images.py: as sequences; pictures.py: and back
batching.py     windows, lanes, documents and pairs as batches
"""
