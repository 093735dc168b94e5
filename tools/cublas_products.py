"""Matrix products of cuBLAS on a GPU, in the shapes of a Llama's layers: the other side of the profile of brasa-cuda's `speed`.

    python tools/cublas_products.py [--models 8b,1b] [--rows 512,4096] [--type bfloat16] [--seconds 1]

Each line is one product of ROWS rows of random numbers with a weight of another layer each time, so that no weight stays in the cache; --seconds long,
of which the median of the second half counts: a GPU that is warm lowers its clock. Needs torch.
"""

import argparse
import time

import torch

# Outputs and inputs of queries with keys and values, of attention's output, of gates with ups, and of the way down.
SHAPES = {
    "8b": [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)],
    "1b": [(3072, 2048), (2048, 2048), (16384, 2048), (2048, 8192)],
}
WEIGHT_BYTES = 1 << 30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="512,4096")
    parser.add_argument("--type", default="bfloat16", choices=["bfloat16", "float16"])
    parser.add_argument("--models", default="8b,1b")
    parser.add_argument("--seconds", type=float, default=1)
    options = parser.parse_args()
    dtype = getattr(torch, options.type)
    for model in options.models.split(","):
        shapes = SHAPES[model]
        for rows in map(int, options.rows.split(",")):
            all_seconds = all_flops = 0
            for outputs, inputs in shapes:
                x = torch.randn(rows, inputs, device="cuda", dtype=dtype)
                number = WEIGHT_BYTES // (2 * outputs * inputs)
                weights = [torch.randn(outputs, inputs, device="cuda", dtype=dtype) for _ in range(number)]
                passes, start = [], time.perf_counter()
                while time.perf_counter() - start < options.seconds:
                    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                    begin.record()
                    for w in weights:
                        torch.nn.functional.linear(x, w)
                    end.record()
                    torch.cuda.synchronize()
                    passes.append(begin.elapsed_time(end) / 1e3 / number)
                late = sorted(passes[len(passes) // 2:])
                seconds = late[len(late) // 2]
                flops = 2 * rows * outputs * inputs
                all_seconds, all_flops = all_seconds + seconds, all_flops + flops
                print(f"{model} {rows:5} rows x {outputs:5} x {inputs:5}: {seconds * 1e6:8.1f} us {flops / seconds / 1e12:7.1f} TFLOP/s (best {flops / min(passes) / 1e12:.1f})")
            print(f"{model} {rows:5} rows, a layer: {all_seconds * 1e6:8.1f} us {all_flops / all_seconds / 1e12:7.1f} TFLOP/s")


if __name__ == "__main__":
    main()
