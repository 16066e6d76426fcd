"""What tests of several folders share: tiny runs, batches, worlds to enumerate, oracles."""
