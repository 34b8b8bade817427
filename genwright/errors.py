"""The one exception that a user's mistake raises."""


class UserError(Exception):
    """A bad path, flag, file, checkpoint or request, told in one sentence; the command line prints it and exits 1."""
