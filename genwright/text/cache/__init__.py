"""The key-value cache: what each layer stores, its pages, and the tree of prefixes that requests share."""
