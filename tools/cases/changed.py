"""Files with one thing changed: headers of sounds, keys of GGUF files, indexes of checkpoints. Standard library only."""

import json
import os
import struct


def header(sound, data_bytes, riff_bytes=None):
    """A WAV file of 44 bytes and samples, whose header tells other lengths."""
    riff = sound[4:8] if riff_bytes is None else struct.pack("<I", riff_bytes)
    return sound[:4] + riff + sound[8:40] + struct.pack("<I", data_bytes) + sound[44:]


def unfinished_by_apple(sound):
    """A WAV file as AVAudioFile writes it, left without lengths: the samples begin at byte 4,096."""
    junk, filler = b"JUNK" + struct.pack("<I", 28) + bytes(28), b"FLLR" + struct.pack("<I", 4008) + bytes(4008)
    return b"RIFF" + struct.pack("<I", 4088) + b"WAVE" + junk + sound[12:36] + filler + b"data" + bytes(4) + sound[44:]


class Gguf:
    """The head of a GGUF file, as far as it is needed to leave out a key."""

    FIXED = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
    STRING, ARRAY = 8, 9

    def __init__(self, data):
        self.data = data
        self.tensors, pairs = struct.unpack_from("<QQ", data, 8)
        self.at, self.pairs, self.alignment = 24, [], 32
        for _ in range(pairs):
            begin, key = self.at, self.string()
            self.skip(self.number("<I"))
            self.pairs.append((key.decode(), data[begin : self.at]))
        begin = self.at
        for _ in range(self.tensors):
            self.string()
            dimensions = self.number("<I")
            self.at += 8 * dimensions + 12
        self.infos = data[begin : self.at]
        self.weights = data[-(-self.at // self.alignment) * self.alignment :]

    def number(self, form):
        (number,) = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return number

    def string(self):
        length = self.number("<Q")
        self.at += length
        return self.data[self.at - length : self.at]

    def skip(self, kind):
        """Goes over a value."""
        if kind == self.STRING:
            self.string()
        elif kind == self.ARRAY:
            kind, count = self.number("<I"), self.number("<Q")
            for _ in range(count):
                self.skip(kind)
        else:
            self.at += self.FIXED[kind]

    def without(self, name):
        """The file without a key."""
        kept = [pair for key, pair in self.pairs if key != name]
        assert len(kept) == len(self.pairs) - 1, f"{name} is not in the file"
        head = self.data[:8] + struct.pack("<QQ", self.tensors, len(kept)) + b"".join(kept) + self.infos
        return head + bytes(-len(head) % self.alignment) + self.weights


def indexed(folder, checkpoint, more):
    """A checkpoint of one shard with an index, which also names the tensors `more`."""
    shard = "model-00001-of-00001.safetensors"
    os.makedirs(folder)
    for name in os.listdir(checkpoint):
        os.symlink(f"{checkpoint}/{name}", f"{folder}/{shard if name == 'model.safetensors' else name}")
    with open(f"{checkpoint}/model.safetensors", "rb") as file:
        head = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    names = [name for name in head if name != "__metadata__"] + more
    with open(f"{folder}/model.safetensors.index.json", "w") as file:
        json.dump({"metadata": {}, "weight_map": dict.fromkeys(names, shard)}, file)
