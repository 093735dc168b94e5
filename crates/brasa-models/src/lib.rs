//! From a checkpoint's configuration to a graph: one small file per model family
