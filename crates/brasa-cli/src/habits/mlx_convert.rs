//! Options of `mlx_lm.convert` (MLX-LM 0.32.2), and the answer of `brasa quantize` to each.

use super::row::Outcome::{Answered, Cases, True};
use super::row::{Row, flag, value};

/// Options of `mlx_lm.convert`, which writes an MLX folder. `brasa quantize IN OUT TYPE` writes a GGUF file.
pub const MLX_CONVERT: &[Row] = &[
    value(
        "--hf-path --model",
        "MODEL",
        Answered("the first word is the checkpoint: `brasa quantize IN OUT TYPE`; `brasa pull` fetches one"),
    ),
    value(
        "--mlx-path",
        "DIR",
        Answered("one GGUF file is written, no MLX folder: `brasa quantize IN OUT TYPE`"),
    ),
    flag("-q --quantize", True("the third word is the type, quantised or not")),
    value(
        "--q-bits",
        "N",
        Cases(
            &[
                (&["2"], Answered("the third word is the type: `Q2_K`")),
                (&["3"], Answered("the third word is the type: `Q3_K_M`")),
                (&["4"], Answered("the third word is the type: `Q4_K_M`")),
                (&["5"], Answered("the third word is the type: `Q5_K_M`")),
                (&["6"], Answered("the third word is the type: `Q6_K`")),
                (&["8"], Answered("the third word is the type: `Q8_0`")),
            ],
            &Answered("types have 2 to 6 and 8 bits: `brasa quantize --list`"),
        ),
    ),
    value(
        "--q-group-size",
        "N",
        Answered("a type has blocks of its own: 32 weights in `Q4_0` and `Q8_0`, 256 in `Q4_K_M`"),
    ),
    value(
        "--q-mode",
        "MODE",
        Cases(
            &[(&["affine"], True("types such as Q4_K have scales and minima"))],
            &Answered("the types are those of `brasa quantize --list`; MXFP and NVFP are not among them"),
        ),
    ),
    value(
        "--quant-predicate",
        "RECIPE",
        Answered("types such as `Q4_K_M` and `Q3_K_L` give some tensors more bits than others"),
    ),
    value(
        "--dtype",
        "TYPE",
        Cases(
            &[
                (&["float16"], Answered("the third word is the type: `F16`, or a quantised one")),
                (&["bfloat16"], Answered("the third word is the type: `BF16`, or a quantised one")),
                (&["float32"], Answered("the third word is the type: `F32`, or a quantised one")),
            ],
            &Answered("the third word is the type: `brasa quantize --list`"),
        ),
    ),
    value("--upload-repo", "REPO", Answered("nothing is uploaded; `hf upload` does that")),
    flag(
        "-d --dequantize",
        Answered("the third word is the type: `BF16` or `F32` of a quantised checkpoint, an MLX folder too"),
    ),
    flag("--trust-remote-code", True("a checkpoint's code is never run")),
];
