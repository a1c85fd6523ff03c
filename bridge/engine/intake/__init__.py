"""What a program sends besides calls: its output, pictures, files, state, progress.

Owns which part of the engine takes which frame, and what of it all becomes part of the result.
Whatever comes was made by code that is hostile: each part bounds what it keeps, and none of them
lets a frame fail the run that it is about.
"""

from bridge.engine.intake.intake import Intake, Left

__all__ = ["Intake", "Left"]
