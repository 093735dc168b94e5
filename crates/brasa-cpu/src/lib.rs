//! The CPU device: kernels for every operation, chosen by what the processor can do
