//! Run language models on the machine you have
