"""Speculative decoding in JAX: published methods in one compiled loop."""

from specjax.api import load, method_names
from specjax.decoder import Decoder
from specjax.engine.requests import Event, Request, Result
from specjax.generation import Generation, Stats
from specjax.method import Method
from specjax.types import Params

__all__ = [
  'Decoder',
  'Event',
  'Generation',
  'Method',
  'Params',
  'Request',
  'Result',
  'Stats',
  'load',
  'method_names',
]
__version__ = '0.1.0'
