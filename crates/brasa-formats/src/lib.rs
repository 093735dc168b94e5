//! GGUF, safetensors and MLX files: readers, writers, and the exact codec of every block format
