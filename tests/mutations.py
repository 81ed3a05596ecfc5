"""The places of a source file that can be changed, and how: each change leaves code that runs and does otherwise.

Left alone: annotations, decorators, docstrings, f-strings and the texts of messages.
"""

import ast
import copy
from collections.abc import Iterator
from typing import NamedTuple

SWAPPED = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add,
    ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
PAIRS = [
    ("min", "max"), ("any", "all"), ("minimum", "maximum"), ("amin", "amax"), ("argmin", "argmax"), ("zeros", "ones"),
    ("zeros_like", "ones_like"), ("startswith", "endswith"),
]  # fmt: skip
NAMES = dict(PAIRS) | {new: old for old, new in PAIRS}
NO_DIFFERENCE = {"desc", "device", "non_blocking", "strict"}  # keywords of calls: on a CPU, or where nothing is wrong
DROPPED = (ast.AugAssign, ast.Raise, ast.Break, ast.Continue, ast.Delete)


class Mutation(NamedTuple):
    line: int
    column: int
    before: str  # the changed piece of source
    after: str
    source: str  # the whole file, changed


def mutations(source: str) -> list[Mutation]:
    """Every mutation of `source`, in its order."""
    lines = [line.encode() for line in source.splitlines(keepends=True)]  # ast counts columns in bytes
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    text, found = source.encode(), []
    for node, new in changes(ast.parse(source)):
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        before, after = text[start:end].decode(), ast.unparse(new)
        changed = text[:start].decode() + after + text[end:].decode()
        found.append(Mutation(node.lineno, node.col_offset, before, after, changed))
    return sorted(found)


def changes(tree: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Nodes below `tree`, each with what may stand in its place."""
    for field, value in ast.iter_fields(tree):
        if field in ("annotation", "returns", "decorator_list", "type_comment"):
            continue
        for node in value if isinstance(value, list) else [value]:
            if isinstance(node, ast.AST) and not is_left_alone(node):
                yield from ((node, new) for new in replacements(node))
                if field in ("test", "ifs") and not has_operator(node):
                    yield node, ast.UnaryOp(ast.Not(), node)
                yield from changes(node)


def replacements(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Compare():
            for place, operator in enumerate(node.ops):
                yield with_changes(node, ops=[*node.ops[:place], SWAPPED[type(operator)](), *node.ops[place + 1 :]])
        case ast.BoolOp():
            yield with_changes(node, op=SWAPPED[type(node.op)]())
        case ast.BinOp() if type(node.op) in SWAPPED and not is_text(node.left) and not is_text(node.right):
            yield with_changes(node, op=SWAPPED[type(node.op)]())
        case ast.AugAssign() if type(node.op) in SWAPPED and not is_text(node.value):
            yield with_changes(node, op=SWAPPED[type(node.op)]())
        case ast.UnaryOp(op=ast.Not() | ast.Invert()):
            yield node.operand
        case ast.UnaryOp(op=ast.USub()) if not isinstance(node.operand, ast.Constant):
            yield node.operand
        case ast.Constant(value=bool()):
            yield ast.Constant(not node.value)
        case ast.Constant(value=int() | float()):
            yield ast.Constant(node.value + 1)
        case ast.Name() if node.id in NAMES:
            yield ast.Name(NAMES[node.id])
        case ast.Attribute() if node.attr in NAMES:
            yield with_changes(node, attr=NAMES[node.attr])
        case ast.Slice():
            for side in ("lower", "upper"):
                if getattr(node, side) is not None:
                    yield with_changes(node, **{side: None})
        case ast.Call():
            for place, keyword in enumerate(node.keywords):
                if keyword.arg is not None and keyword.arg not in NO_DIFFERENCE:
                    yield with_changes(node, keywords=[*node.keywords[:place], *node.keywords[place + 1 :]])
    if is_dropped(node):
        yield ast.Pass()


def is_left_alone(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.keyword) and node.arg in NO_DIFFERENCE)


def has_operator(node: ast.AST) -> bool:
    """Whether a condition can be changed at an operator of its own, and need not be negated."""
    return isinstance(node, ast.Compare | ast.BoolOp) or (
        isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
    )


def is_dropped(node: ast.AST) -> bool:
    """Whether `node` is a statement without which the rest still runs."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call)
    if isinstance(node, ast.Assign):
        return any(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets)
    return isinstance(node, DROPPED) or (isinstance(node, ast.Return) and node.value is None)


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def with_changes(node: ast.AST, **fields) -> ast.AST:
    new = copy.copy(node)
    for name, value in fields.items():
        setattr(new, name, value)
    return new
