"""Code that touches private data or draws secret noise: key streams, the discrete Gaussian, shards, clipping."""
