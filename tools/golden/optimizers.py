"""Golden optimizers: values after updates by torch, and learning rates by transformers.

usage: optimizers.py OUT.safetensors     (needs torch, transformers, safetensors, bitsandbytes)

Two arrays of 7 and 33 values make 12 updates by gradients that are written out too. For each optimizer, the values after the
1st, 2nd and 12th update; for `clip`, the gradients of the first update after clipping to 0.5. For each schedule, the rates of
20 updates behind a warm-up of 5, of 25 in all, with a peak of 0.3.

Two matrices of MATRICES make 4 updates of `torch.optim.Muon` in the same way: `muon.U.M` behind update U, as it is, which makes its matrices orthogonal in
bf16, and `muon_f32.U.M`, where it does so in f32.

`eight_bits.signed` and `.unsigned` are the numbers of bitsandbytes' codes. Array k has 4500 numbers cos(1.7·i + k) · 10^(i/1125 − 3). `eight_bits.codes` and `.magnitudes` are what the
function of bitsandbytes for the CPU makes of array 0 in blocks of 256 with signed codes, `.unsigned_codes` those of its magnitudes. Array 1 makes 6 updates of AdamW by arrays 2 to 7, whose
moments are decoded and encoded by these functions: `eight_bits.end`.
"""

import pathlib
import sys

import torch
from safetensors.torch import save_file
from transformers import get_constant_schedule_with_warmup, get_cosine_schedule_with_warmup, get_linear_schedule_with_warmup

SIZES, UPDATES, RATE = [7, 33], 12, 0.01

OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=RATE, weight_decay=0.1, betas=(0.9, 0.95), eps=1e-6),
    "adam": lambda p: torch.optim.Adam(p, lr=RATE, weight_decay=0.1),
    "sgd": lambda p: torch.optim.SGD(p, lr=RATE, weight_decay=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=RATE, momentum=0.9),
    "nesterov": lambda p: torch.optim.SGD(p, lr=RATE, momentum=0.9, weight_decay=0.1, nesterov=True),
}


MATRICES = [(6, 10), (12, 5)]


def muon(out: dict, name: str) -> None:
    generator = torch.Generator().manual_seed(1)
    parameters = [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in MATRICES]
    for matrix, parameter in enumerate(parameters):
        out[f"muon.begin.{matrix}"] = parameter.detach().clone()
    optimizer = torch.optim.Muon(parameters, lr=RATE, weight_decay=0.1, momentum=0.9)
    for update in range(4):
        for matrix, parameter in enumerate(parameters):
            parameter.grad = torch.randn(parameter.shape, generator=generator)
            out[f"muon.gradient.{update + 1}.{matrix}"] = parameter.grad.clone()
        optimizer.step()
        for matrix, parameter in enumerate(parameters):
            out[f"{name}.{update + 1}.{matrix}"] = parameter.detach().clone()


def eight_bits(out: dict) -> None:
    from bitsandbytes import functional as bnb

    places = torch.arange(4500, dtype=torch.float64)
    made = lambda number: ((1.7 * places + number).cos() * 10 ** (places / 1125 - 3)).float()
    maps = {signed: bnb.create_dynamic_map(signed=signed) for signed in (True, False)}
    encode = lambda x, signed: bnb.quantize_blockwise(x, code=maps[signed], blocksize=256)
    out["eight_bits.signed"], out["eight_bits.unsigned"] = maps[True].clone(), maps[False].clone()
    values = made(0)
    codes, state = encode(values, True)
    out["eight_bits.codes"], out["eight_bits.magnitudes"] = codes.float(), state.absmax.clone()
    out["eight_bits.unsigned_codes"] = encode(values.abs(), False)[0].float()
    value = made(1)
    moments = [encode(torch.zeros(4500), True), encode(torch.zeros(4500), False)]
    beta1, beta2, eps, decay = 0.9, 0.95, 1e-6, 0.1
    for update in range(1, 7):
        gradient = made(1 + update)
        mean, square = (bnb.dequantize_blockwise(*moment) for moment in moments)
        mean = beta1 * mean + (1 - beta1) * gradient
        square = beta2 * square + (1 - beta2) * gradient * gradient
        root = square.sqrt() / (1 - beta2**update) ** 0.5 + eps
        value = value * (1 - RATE * decay) - RATE / (1 - beta1**update) * mean / root
        moments = [encode(mean, True), encode(square, False)]
    out["eight_bits.end"] = value.clone()


def main() -> None:
    torch.manual_seed(0)
    out = {}
    begin = [torch.randn(size) for size in SIZES]
    gradients = [[torch.randn(size) * 10.0 ** (update % 3 - 1) for size in SIZES] for update in range(UPDATES)]
    for array, values in enumerate(begin):
        out[f"begin.{array}"] = values.clone()
        out[f"gradients.{array}"] = torch.stack([each[array] for each in gradients])
    for name, make in OPTIMIZERS.items():
        parameters = [torch.nn.Parameter(values.clone()) for values in begin]
        optimizer = make(parameters)
        for update, each in enumerate(gradients):
            for parameter, gradient in zip(parameters, each):
                parameter.grad = gradient.clone()
            optimizer.step()
            if update in (0, 1, UPDATES - 1):
                for array, parameter in enumerate(parameters):
                    out[f"{name}.{update + 1}.{array}"] = parameter.detach().clone()
    parameters = [torch.nn.Parameter(values.clone()) for values in begin]
    for parameter, gradient in zip(parameters, gradients[0]):
        parameter.grad = gradient.clone()
    out["clip.norm"] = torch.nn.utils.clip_grad_norm_(parameters, 0.5).reshape(1)
    for array, parameter in enumerate(parameters):
        out[f"clip.{array}"] = parameter.grad.clone()
    for name, make in {
        "constant": lambda o: get_constant_schedule_with_warmup(o, 5),
        "linear": lambda o: get_linear_schedule_with_warmup(o, 5, 25),
        "cosine": lambda o: get_cosine_schedule_with_warmup(o, 5, 25),
    }.items():
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.3)
        schedule, rates = make(optimizer), []
        for _ in range(25):
            rates.append(schedule.get_last_lr()[0])
            optimizer.step()
            schedule.step()
        out[f"rates.{name}"] = torch.tensor(rates, dtype=torch.float32)
    eight_bits(out)
    muon(out, "muon")
    torch.bfloat16 = torch.float32
    muon(out, "muon_f32")
    save_file(out, pathlib.Path(sys.argv[1]))


if __name__ == "__main__":
    main()
