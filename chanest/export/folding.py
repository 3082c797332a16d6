"""What depends on the weights alone is worked out when a file is written, and not again for every y."""

from __future__ import annotations

import operator
from typing import Any

from torch import Tensor, fx
from torch.export import ExportedProgram


def fold(program: ExportedProgram) -> fx.GraphModule:
    """The recorded computation, in which operators on weights are replaced by their results.

    Nothing in it writes into a tensor any more, so that a result stays what it is.
    """
    module: fx.GraphModule = program.run_decompositions({}).module(check_guards=False)
    known = _known(module)
    results = [node for node in known if node.op == "call_function" and any(user not in known for user in node.users)]
    for number, node in enumerate(results):
        value = known[node]
        if not isinstance(value, Tensor):
            continue
        module.register_buffer(f"folded_{number}", value.contiguous().clone())
        with module.graph.inserting_before(node):
            held = module.graph.get_attr(f"folded_{number}")
        for user in [user for user in node.users if user not in known]:
            user.replace_input_with(node, held)
    module.graph.eliminate_dead_code()
    module.delete_all_unused_submodules()
    module.recompile()
    return module


def _known(module: fx.GraphModule) -> dict[fx.Node, Any]:
    """The nodes whose results do not depend on any input, with these."""
    known: dict[fx.Node, Any] = {}
    for node in module.graph.nodes:
        if node.op == "get_attr":
            held = operator.attrgetter(str(node.target))(module)
            if isinstance(held, Tensor):
                known[node] = held.detach()
        elif node.op == "call_function" and callable(node.target):
            inputs = node.all_input_nodes
            if inputs and all(each in known for each in inputs):
                args: Any = fx.node.map_arg(node.args, known.__getitem__)
                kwargs: Any = fx.node.map_arg(node.kwargs, known.__getitem__)
                known[node] = node.target(*args, **kwargs)
    return known
