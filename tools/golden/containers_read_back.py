#!/usr/bin/env python3
"""Reads what Brasa writes with the public readers, and compares it with what Brasa read.

Needs `gguf`, `safetensors`, `torch` and `mlx`, the golden files of containers.py, and the example `rewrite`:

    cargo build -p brasa-formats --example rewrite
    python tools/golden/containers_read_back.py crates/brasa-formats/tests/golden/containers target/debug/examples/rewrite
"""
import subprocess
import sys
import tempfile
from pathlib import Path

import gguf
import mlx.core as mx
from safetensors.torch import load_file

golden, rewrite = Path(sys.argv[1]), sys.argv[2]


def fields(reader):
    listed = [(k, f.types, f.contents()) for k, f in reader.fields.items() if not k.startswith(("GGUF.", "split."))]
    return [entry for entry in listed if entry[0] != "general.alignment"]


with tempfile.TemporaryDirectory() as scratch:
    for case in ["every.gguf", "aligned.gguf", "version2.gguf", "split"]:
        ours = Path(scratch) / f"{case}.out.gguf"
        subprocess.run([rewrite, golden / case, ours], check=True)
        parts = sorted(golden.glob(f"{case}/*.gguf")) or [golden / case]
        theirs = [gguf.GGUFReader(part) for part in parts]
        reader = gguf.GGUFReader(ours)
        # Nested arrays are beyond GGUFReader.contents(); the Rust tests compare them.
        assert [f for f in fields(reader) if f[0] != "array.arrays"] == [
            f for f in fields(theirs[0]) if f[0] != "array.arrays"], case
        before = [tensor for part in theirs for tensor in part.tensors]
        assert len(before) == len(reader.tensors), case
        for a, b in zip(before, reader.tensors):
            assert (a.name, a.tensor_type, list(a.shape)) == (b.name, b.tensor_type, list(b.shape)), a.name
            assert a.data.tobytes() == b.data.tobytes(), a.name
        print(f"{case}: {len(before)} tensors equal, {len(fields(reader))} keys equal")

    for case in ["plain", "sharded", "globbed"]:
        ours = Path(scratch) / f"{case}.safetensors"
        subprocess.run([rewrite, golden / case, ours], check=True)
        before = {}
        for part in sorted((golden / case).glob("*.safetensors")):
            before |= load_file(part)
        before = {name: t for name, t in before.items() if t.is_floating_point()}
        after = load_file(ours)
        assert before.keys() == after.keys(), case
        for name, tensor in before.items():
            assert tensor.dtype == after[name].dtype and tensor.equal(after[name]), name
        print(f"{case}: {len(after)} tensors equal")

    ours = Path(scratch) / "mlx.safetensors"
    subprocess.run([rewrite, golden / "mlx", ours], check=True)
    before, after = mx.load(str(golden / "mlx" / "model.safetensors")), mx.load(str(ours))
    assert before.keys() == after.keys()
    for name, array in before.items():
        assert array.dtype == after[name].dtype and mx.array_equal(array, after[name]), name
    print(f"mlx: {len(after)} arrays equal")
