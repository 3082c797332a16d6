"""Complex arithmetic written as real arithmetic, for formats that know no complex numbers.

A recorded computation is gone through node by node, with a pair of real tensors in place of every complex one. What
comes out takes and gives complex tensors as real ones with a last axis of two, (real, imaginary).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

aten = torch.ops.aten


@dataclass(frozen=True)
class Pair:
    """A complex tensor as two real ones."""

    re: Tensor
    im: Tensor

    @classmethod
    def of(cls, value: Any) -> Pair:
        """Of anything that numbers can be: a pair, a real tensor, a Python number."""
        if isinstance(value, Pair):
            return value
        if isinstance(value, Tensor):
            return cls(value.real, value.imag) if value.is_complex() else cls(value, torch.zeros_like(value))
        number = complex(value)
        return cls(torch.tensor(number.real), torch.tensor(number.imag))

    @classmethod
    def unstacked(cls, value: Tensor) -> Pair:
        """Of [..., 2]."""
        return cls(value.select(-1, 0), value.select(-1, 1))

    def stacked(self) -> Tensor:
        """[..., 2]."""
        return torch.stack([self.re, self.im], -1)

    def modulus(self) -> Tensor:
        return torch.sqrt(self.re.square() + self.im.square())


def _product(times: Callable[..., Any], a: Any, b: Any) -> Pair:
    """Of what multiplies bilinearly; a factor that is real is no pair of zeros."""
    if not isinstance(a, Pair):
        return Pair(times(a, b.re), times(a, b.im))
    if not isinstance(b, Pair):
        return Pair(times(a.re, b), times(a.im, b))
    return Pair(times(a.re, b.re) - times(a.im, b.im), times(a.re, b.im) + times(a.im, b.re))


def _multiplied(times: Callable[..., Any]) -> Callable[..., Any]:
    return lambda a, b: _product(times, a, b)


def _added(sign: float) -> Callable[..., Any]:
    def rule(a: Any, b: Any, alpha: float = 1.0) -> Pair:
        left, right = Pair.of(a), Pair.of(b)
        return Pair(left.re + sign * alpha * right.re, left.im + sign * alpha * right.im)

    return rule


def _divided(a: Any, b: Any) -> Pair:
    if not isinstance(b, Pair):
        return Pair(a.re / b, a.im / b)
    power = b.re.square() + b.im.square()
    quotient = _product(torch.mul, a, Pair(b.re, -b.im))
    return Pair(quotient.re / power, quotient.im / power)


def _where(condition: Tensor, a: Any, b: Any) -> Pair:
    left, right = Pair.of(a), Pair.of(b)
    return Pair(torch.where(condition, left.re, right.re), torch.where(condition, left.im, right.im))


def _differs(a: Pair, b: Any) -> Tensor:
    other = Pair.of(b)
    return (a.re != other.re) | (a.im != other.im)


_RULES: dict[Any, Callable[..., Any]] = {
    aten.mul.Tensor: _multiplied(torch.mul),
    aten.mul.Scalar: _multiplied(torch.mul),
    aten.mm.default: _multiplied(torch.mm),
    aten.bmm.default: _multiplied(torch.bmm),
    aten.matmul.default: _multiplied(torch.matmul),
    aten.add.Tensor: _added(1.0),
    aten.add.Scalar: _added(1.0),
    aten.sub.Tensor: _added(-1.0),
    aten.div.Tensor: _divided,
    aten.div.Scalar: _divided,
    aten.where.self: _where,
    aten.ne.Scalar: _differs,
    aten.ne.Tensor: _differs,
    aten.abs.default: Pair.modulus,
    aten.real.default: lambda a: a.re,
    aten.imag.default: lambda a: a.im,
    aten.view_as_real.default: Pair.stacked,
    aten.view_as_complex.default: Pair.unstacked,
    aten.complex.default: Pair,
    aten._conj.default: lambda a: Pair(a.re, -a.im),
    aten.conj_physical.default: lambda a: Pair(a.re, -a.im),
    aten.sym_size.int: lambda a, dim: a.re.shape[dim],
    aten.full_like.default: lambda a, value, **_: Pair(torch.full_like(a.re, value), torch.zeros_like(a.im)),
    aten._assert_tensor_metadata.default: lambda *_, **__: None,
    aten.isfinite.default: lambda a: torch.isfinite(a.re) & torch.isfinite(a.im),
}
"""What an operator is on pairs."""
_GAMMAINCC = (aten.special_gammaincc.default, aten.igammac.default, torch.ops.prims.igammac.default)
_LINEAR = {
    getattr(aten, name)
    for name in (
        "view", "reshape", "_unsafe_view", "permute", "transpose", "t", "expand", "unsqueeze", "squeeze", "select", "slice",
        "clone", "alias", "detach", "contiguous", "cat", "stack", "sum", "mean", "repeat", "index", "index_select", "gather",
        "neg", "constant_pad_nd", "diagonal", "flip", "split", "split_with_sizes", "unbind", "resolve_conj", "resolve_neg",
        "lift_fresh_copy", "unfold", "as_strided", "mT", "flatten", "unflatten", "copy", "zeros_like", "new_zeros",
    )
}  # fmt: skip
"""Operators that treat both parts alike."""


class RealForm(nn.Module):
    """A recorded computation in real arithmetic."""

    def __init__(self, program: torch.export.ExportedProgram) -> None:
        super().__init__()
        graph = program.run_decompositions().module(check_guards=False)
        self._graph = (graph,)  # no submodule: its tensors are held here, under flat names
        self._places: dict[str, str] = {}
        for target in sorted({str(node.target) for node in graph.graph.nodes if node.op == "get_attr"}):
            value = operator.attrgetter(target)(graph)
            if isinstance(value, Tensor):
                self._places[target] = f"held_{len(self._places)}"
                self.register_buffer(self._places[target], value.detach())

    def held(self, target: str) -> Tensor | None:
        """The tensor that a node gets; None for what is none."""
        found: Tensor | None = getattr(self, self._places[target]) if target in self._places else None
        return found

    def forward(self, *inputs: Tensor) -> Tensor:
        """Inputs and output as the computation has them, complex ones as [..., 2]."""
        result: Tensor = _Walk(self._graph[0], self.held).run(*inputs)
        return result


class _Walk(fx.Interpreter):
    """Goes through the nodes with pairs."""

    def __init__(self, graph: fx.GraphModule, held: Callable[[str], Tensor | None]) -> None:
        super().__init__(graph)
        self._held = held

    def placeholder(self, target: Any, args: Any, kwargs: Any) -> Any:
        value = super().placeholder(target, args, kwargs)
        return Pair.unstacked(value) if self._complex else value

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        value = self._held(target)
        if value is None:
            return super().get_attr(target, args, kwargs)
        return Pair.of(value) if value.is_complex() else value

    def output(self, target: Any, args: Any, kwargs: Any) -> Any:
        value = super().output(target, args, kwargs)
        return _first(value)

    def run_node(self, n: fx.Node) -> Any:
        known = n.meta.get("val")
        self._complex = isinstance(known, Tensor) and known.is_complex()
        self._node = n
        return super().run_node(n)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        flat = [*_leaves(args), *_leaves(kwargs.values())]
        if target in _GAMMAINCC:
            return _gammaincc(_filled_with(self._node.args[0]), args[1])
        if any(isinstance(each, Pair) for each in flat):
            return self._on_pairs(target, args, kwargs)
        if target is aten.view_as_complex.default or target is aten.complex.default:
            return _RULES[target](*args)
        if not self._complex:
            return super().call_function(target, args, kwargs)
        return self._made_complex(target, args, kwargs)

    def _on_pairs(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target in _RULES:
            return _RULES[target](*args, **kwargs)
        packet = getattr(target, "overloadpacket", None)
        if packet in _LINEAR:
            kwargs = {key: value for key, value in kwargs.items() if key != "dtype"}
            parts = (target(*_part(args, part), **kwargs) for part in ("re", "im"))
            return _joined(*parts)
        if target is aten._to_copy.default:
            return args[0]
        if getattr(target, "__name__", "") == "getitem":
            return args[0][args[1]]
        raise ValueError(f"{target} of complex numbers has no real form here")

    def _made_complex(self, target: Any, args: Any, kwargs: Any) -> Pair:
        """What makes a complex tensor of real ones or of nothing: it has no imaginary part."""
        real = {**kwargs, "dtype": torch.float32} if "dtype" in kwargs else kwargs
        return Pair.of(target(*args, **real))


def _leaves(values: Any) -> list[Any]:
    return [leaf for value in values for leaf in (_leaves(value) if isinstance(value, list | tuple) else [value])]


def _part(values: Any, part: str) -> Any:
    """The arguments with one part in place of every pair."""
    if isinstance(values, list | tuple):
        return type(values)(_part(value, part) for value in values)
    return getattr(values, part) if isinstance(values, Pair) else values


def _joined(re: Any, im: Any) -> Any:
    return Pair(re, im) if isinstance(re, Tensor) else [Pair(a, b) for a, b in zip(re, im, strict=True)]


def _first(value: Any) -> Tensor:
    while not isinstance(value, Tensor | Pair):
        (value,) = value
    return value.stacked() if isinstance(value, Pair) else value


def _filled_with(node: Any) -> int:
    """The number that a recorded tensor is full of."""
    if node.target not in (aten.full.default, aten.full_like.default) or node.args[1] != int(node.args[1]):
        raise ValueError(f"the incomplete gamma function is known for whole numbers, not for {node.format_node()}")
    return int(node.args[1])


def _gammaincc(order: int, x: Tensor) -> Tensor:
    """Q(k, x) of a whole number: e^-x Σ_{j<k} x^j/j!. x: [batch]."""
    powers = torch.arange(order, dtype=x.dtype)
    factorials = torch.tensor([math.lgamma(j + 1.0) for j in range(order)], dtype=x.dtype)
    terms = powers * x.clamp_min(torch.finfo(x.dtype).tiny).log()[:, None] - factorials - x[:, None]
    return terms.logsumexp(1).exp()
