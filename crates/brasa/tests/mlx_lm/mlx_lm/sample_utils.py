"""A stand-in: the sampler is its own description."""


def make_sampler(temp, top_p, min_p, top_k):
    return f"temp={temp} top_p={top_p} min_p={min_p} top_k={top_k}"
