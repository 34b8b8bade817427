"""Text to token ids and back: vocabularies, chat templates, and control tokens that a message spells."""
