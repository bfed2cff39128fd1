"""The paper's experiments: each is one function that runs, writes its numbers and draws them."""
