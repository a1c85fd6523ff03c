"""The image that one of the examples needs."""

from tests.data_image import data_image

__all__ = ["data_image"]
