"""One thread for each worker: with two workers on two cores, more would fight over small products."""

import torch

torch.set_num_threads(1)
