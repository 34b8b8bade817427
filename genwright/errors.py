"""What a user is told: the one exception that a mistake raises, and the one warning."""


class UserError(Exception):
    """A bad path, flag, file, checkpoint or request, told in one sentence; the command line prints it and exits 1."""


class GenwrightWarning(UserWarning):
    """What a user should know though the work goes on, told in one sentence; the command line prints it on stderr."""
