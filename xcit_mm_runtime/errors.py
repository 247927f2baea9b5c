"""Errors that a user can fix."""


class UserError(Exception):
    """Something that the user must fix; commands show it as one paragraph, with exit status 2."""


class ModelError(UserError):
    """A file that cannot be run as an exported model."""


class ImageError(ValueError):
    """An image that a model cannot take."""
