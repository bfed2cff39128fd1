"""What all tests need before anything is imported, those in docstrings too."""

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before any kernel is imported: Triton asks only then

# Small networks are faster with one thread, and the tests run side by side: several threads each
# would wait for one another. The processes that tests start do the same.
os.environ["OMP_NUM_THREADS"] = "1"
torch.set_num_threads(1)
