"""The exception whose text is shown to the user without a traceback."""


class ReportError(Exception):
    """Raised when something that the user gave cannot be used. The text says what, why, and what to do."""


class BadRun(ReportError):
    """Raised for a run that cannot be read. Others may be read."""
