"""The one exception for a user's mistake: what is wrong, and the remedy, in one line."""


class UserError(Exception):
    """Shown by the command line as `error: MESSAGE`, without a traceback, exit code 2."""
