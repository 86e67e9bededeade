"""Code that reads private data or draws secret noise: key streams, the discrete Gaussian, shards, clipping."""
