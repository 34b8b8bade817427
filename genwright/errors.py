"""The exception for user mistakes, and the warning class."""


class UserError(Exception):
    """A bad path, flag, file, checkpoint or request, in one sentence; the command line prints it and exits with 1."""


class GenwrightWarning(UserWarning):
    """Something a user should know, in one sentence; the command line prints it on stderr and continues."""
