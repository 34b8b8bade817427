"""Finds stop strings in text that arrives in pieces."""


class StopString:
    """Matches one stop string against a text (Knuth, Morris and Pratt, 1977).

    A character takes constant time on average, however long the stop string is: the table of borders is computed only
    as far as the text has matched.
    """

    def __init__(self, text: str):
        self.text = text
        self.matched = 0  # characters at the text's end that are a prefix of the stop string
        self._borders = [0, 0]  # [i]: length of the longest proper prefix of text[:i] that is also its suffix

    def feed(self, piece: str) -> int | None:
        """Read a piece; returns after how many of its characters the stop string is first complete, or None."""
        found = None
        for count, character in enumerate(piece, 1):
            self.matched = self._extend(self.matched, character)
            if len(self._borders) == self.matched:
                self._borders.append(self._extend(self._borders[-1], character))
            if self.matched == len(self.text):
                found = found or count
                self.matched = self._borders[self.matched]
        return found

    def _extend(self, matched: int, character: str) -> int:
        while matched and self.text[matched] != character:
            matched = self._borders[matched]
        return matched + (self.text[matched] == character)
