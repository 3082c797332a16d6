"""Where tensors are: what people may call a device, and whether this machine has it."""

import re

import torch

Device = torch.device | str


def check_device(name: str, value: str) -> None:
    """ValueError unless `value` is auto, cpu, cuda or cuda:N."""
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", value):
        raise ValueError(f"{name} must be auto, cpu, cuda or cuda:N, got {value!r}")


def find_device(name: str, value: str) -> torch.device:
    """The device that auto (the first GPU where there is one), cpu, cuda (the first GPU) or cuda:N names, if it is there."""
    check_device(name, value)
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if value == "cpu" or (value == "auto" and not found):
        return torch.device("cpu")
    number = int(value.partition(":")[2] or 0)
    if number >= found:
        known = (
            "no GPU that torch can use"
            if not found
            else f"only cuda:0 to cuda:{found - 1}"
            if found > 1
            else "only cuda:0"
        )
        raise ValueError(f"{name} is {value}, but this machine has {known}; use cpu or auto")
    return torch.device("cuda", number)
