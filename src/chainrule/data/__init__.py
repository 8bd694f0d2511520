"""From a data spec to batches: source -> corpus (encoded, memory-mapped) -> feed (deterministic, resumable).

source.py       interfaces of text sources and pair sources; normalisation, counting, splitting
text.py         files, folders, globs, standard input; records.py and compression.py: their formats
hub.py          Hugging Face datasets, local or from the hub
builtin.py      texts and pairs that need no download
cache.py        computed results by fingerprint
corpus.py       token ids on disk; preparing the splits of a text
pairs.py        sources of pairs: two files, tables, JSON lines, the hub
cleaning.py     filtering of training pairs, with a report
parallel.py     both sides of pairs as token ids; preparing the splits of a translation task
examples.py     labelled data: labelled.py (one label per text), conllu.py (tags), squad.py (answers)
spans.py        span corruption (T5)
image_files.py  reading images; images.py: images as sequences; pictures.py: PNG and GIF output
windows.py      sliding windows
permutation.py  random permutations without a table
batching.py     windows, lanes, documents, pairs and chunks as batches
"""
