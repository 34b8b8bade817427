"""Speculation: drafts propose tokens, and the next step of the model checks them."""
