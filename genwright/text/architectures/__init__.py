"""One file per architecture: names, config reader, weight map, embed, block, head."""
