"""What moves whole arrays in the loop of a compiled program."""

import re

# What may yield an array of a cache's shape without moving the whole of it.
IN_PLACE = {'parameter', 'get-tuple-element', 'bitcast', 'dynamic-update-slice'}
CALLS = re.compile(r'(?:calls|to_apply|body|condition)=%([\w.\-]+)')
BRANCHES = re.compile(r'branch_computations=\{([^}]*)\}')


def computations(text: str) -> dict[str, list[str]]:
  """The instructions of each computation of a compiled module."""
  found, lines = {}, None
  for line in text.splitlines():
    head = re.match(r'(?:ENTRY )?%([\w.\-]+) \(.*\{$', line)
    if head:
      lines = found.setdefault(head[1], [])
    elif lines is not None and '=' in line:
      lines.append(line.strip())
  return found


def loop_computations(text: str) -> dict[str, list[str]]:
  """Those that run within a loop; outside the rounds there is none."""
  every = computations(text)
  bodies = re.findall(r' while\(.*body=%([\w.\-]+)', text)
  assert bodies, 'no loop in the program'
  seen, todo = {}, bodies
  while todo:
    name = todo.pop()
    if name in seen:
      continue
    seen[name] = every[name]
    for line in every[name]:
      todo += CALLS.findall(line)
      for group in BRANCHES.findall(line):
        todo += re.findall(r'%([\w.\-]+)', group)
  return seen


def whole_moves(text: str, shape: str) -> list[str]:
  """Instructions in the loop that write a whole array of this shape anew."""
  loop, moves = loop_computations(text), []
  yields = re.compile(rf'= {re.escape(shape)}\S* ([a-z\-]+)\(')
  for line in (line for lines in loop.values() for line in lines):
    op = yields.search(line)
    if op is None or op[1] in IN_PLACE:
      continue
    if op[1] == 'fusion':  # in place where its result is an update of a slice
      root = next(x for x in loop[CALLS.search(line)[1]] if 'ROOT' in x)
      if yields.search(root)[1] in IN_PLACE:
        continue
    moves.append(line)
  return moves
