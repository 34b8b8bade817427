"""The layers of a text model in plain torch: the truth that every kernel is tested against."""
