"""Stop strings, found in text that arrives in pieces."""


class StopString:
    """One stop string and how much of it the text ends with (Knuth, Morris and Pratt, 1977).

    A character costs constant time on average, however long the string is: the table of borders grows only as far as
    the text has matched.
    """

    def __init__(self, text: str):
        self.text = text
        self.matched = 0  # characters at the text's end that begin the stop string
        self._borders = [0, 0]  # of text[:i]: its longest beginning, shorter than itself, that is also its end

    def feed(self, piece: str) -> int | None:
        """Read on; how many characters of the piece it takes to complete the stop string for the first time."""
        found = None
        for count, character in enumerate(piece, 1):
            self.matched = self._longer(self.matched, character)
            if len(self._borders) == self.matched:
                self._borders.append(self._longer(self._borders[-1], character))
            if self.matched == len(self.text):
                found = found or count
                self.matched = self._borders[self.matched]
        return found

    def _longer(self, matched: int, character: str) -> int:
        while matched and self.text[matched] != character:
            matched = self._borders[matched]
        return matched + (self.text[matched] == character)
