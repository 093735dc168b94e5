"""A stand-in for the package mlx."""
