"""The key-value cache: what each layer stores, the pages that hold it, and the tree of prefixes that requests share."""
