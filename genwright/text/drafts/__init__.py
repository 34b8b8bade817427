"""Speculative decoding: drafts propose tokens, and the next step of the model verifies them."""
