"""Runs language models that are too large for the GPU: the program ``coordinator`` from Python.

``generate`` answers prompts and yields each answer as it is finished, ``Batch`` is the object
behind it; ``score`` tells how likely continuations are, ``embed`` turns texts into vectors, and
``serve`` is a server for OpenAI's clients. Processes and files are the interface, so what is true of the program is true here: an
answer depends on its prompt alone, and none is lost.
"""

from __future__ import annotations

from ._answers import Answer, Choice, Usage
from ._batch import Batch, generate
from ._binary import binary
from ._embed import Embedded, Embedding, Text, embed
from ._errors import Error
from ._job import Progress
from ._prompts import Prompt
from ._score import Question, Score, Scored, Scoring, score
from ._server import Server, serve

__all__ = [
    "Answer",
    "Batch",
    "Choice",
    "Embedded",
    "Embedding",
    "Error",
    "Progress",
    "Prompt",
    "Question",
    "Score",
    "Scored",
    "Scoring",
    "Server",
    "Text",
    "Usage",
    "binary",
    "embed",
    "generate",
    "score",
    "serve",
]
