"""What an explainer could change on a model or in the process, to assert that it changed nothing."""

from __future__ import annotations

import torch
from torch import nn


def state_of(model: nn.Module) -> dict[str, object]:
    """Everything that an explainer could change: parameters, hooks, modes, random state and the like."""
    hooks = {
        f"{name}.{slot}": len(vars(module)[slot])
        for name, module in model.named_modules()
        for slot in vars(module)
        if slot.endswith("_hooks")
    }
    global_hooks = {
        k: len(v) for k, v in vars(nn.modules.module).items() if k.startswith("_global") and isinstance(v, dict)
    }
    return {
        "weights": {
            name: (id(p), p._version, p.detach().clone(), p.requires_grad) for name, p in model.named_parameters()
        },
        "grads": [name for name, p in model.named_parameters() if p.grad is not None],
        "attributes": {name: sorted(vars(module)) for name, module in model.named_modules()},
        "hooks": hooks | global_hooks,
        "modes": {name: module.training for name, module in model.named_modules()},
        "forwards": [type(module).forward for module in model.modules()],
        "random": torch.get_rng_state(),
        "grad enabled": torch.is_grad_enabled(),
        "function modes": torch._C._len_torch_function_stack(),
    }


def assert_same_state(before: dict[str, object], after: dict[str, object]) -> None:
    """Assert that two results of `state_of` are equal."""
    for name, value in before.items():
        if name == "weights":
            for key, (identity, version, weight, requires_grad) in value.items():
                assert (identity, version, requires_grad) == (
                    after[name][key][0],
                    after[name][key][1],
                    after[name][key][3],
                )
                assert torch.equal(weight, after[name][key][2])
        elif isinstance(value, torch.Tensor):
            assert torch.equal(value, after[name]), name
        else:
            assert value == after[name], name
