"""byte_lm: a target of 330 thousand parameters and its drafters, for goldens.

What the methods' authors' code computes with these weights is recorded beside
them; their README says how they were made.
"""

import pathlib

import specjax

FOLDER = pathlib.Path(__file__).parent / 'goldens' / 'byte_lm'
DRAFTERS = {
  'caddtree': 'dflash',
  'ddtree': 'dflash',
  'dflash': 'dflash',
  'taps': 'dflash',
  'treeflash': 'treeflash',
}


def load(method='ar', **options):
  """A decoder of the model with a method, by name."""
  if method in DRAFTERS:
    options = {'drafter': FOLDER / DRAFTERS[method]} | options
  return specjax.load(FOLDER / 'target', method, **options)
