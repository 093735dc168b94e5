"""llama.cpp through llama_cpp's C interface: ids in, logits out.

CPU, no flash attention, keys and values in float32 unless asked otherwise. What remains of llama.cpp's own
rounding: it multiplies weights of a 16-bit type with activations rounded to that type and weights of a block
format with activations quantised to 8 bits; only float32 files are computed in float32 throughout.
"""

import llama_cpp
import numpy as np

GGML_TYPES = {"f32": 0, "f16": 1}
_loud = []


@llama_cpp.llama_log_callback
def _keep_errors(level, text, user_data):
    if level >= 4:  # GGML_LOG_LEVEL_ERROR
        _loud.append(text.decode(errors="replace").strip())


llama_cpp.llama_log_set(_keep_errors, None)
llama_cpp.llama_backend_init()


class Engine:
    def __init__(self, path, n_ctx: int = 1024, kv: str = "f32", threads: int = 2, observe=None):
        """`observe`: a ggml_backend_sched_eval_callback that sees every tensor; keep it alive."""
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = 0
        _loud.clear()
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
        if not self.model:
            raise RuntimeError("llama.cpp cannot load: " + "; ".join(_loud))
        self.vocab = llama_cpp.llama_model_get_vocab(self.model)
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(self.vocab)
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = n_ctx, n_ctx, min(n_ctx, 512)
        params.n_threads = params.n_threads_batch = threads
        params.flash_attn_type = 0
        params.type_k = params.type_v = GGML_TYPES[kv]
        if observe is not None:
            params.cb_eval = observe
        self.n_ctx = n_ctx
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        if not self.context:
            raise RuntimeError("llama.cpp makes no context: " + "; ".join(_loud))
        self.batch = llama_cpp.llama_batch_init(n_ctx, 0, 1)

    def close(self):
        llama_cpp.llama_batch_free(self.batch)
        llama_cpp.llama_free(self.context)
        llama_cpp.llama_model_free(self.model)

    def tokenize(self, text: str, add_special: bool, parse_special: bool) -> list:
        data = text.encode()
        out = (llama_cpp.llama_token * (len(data) + 16))()
        n = llama_cpp.llama_tokenize(self.vocab, data, len(data), out, len(out), add_special, parse_special)
        return list(out[:n])

    def clear(self):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)

    def decode(self, ids: list, first: int, rows: range = None) -> np.ndarray:
        """Appends `ids` at position `first`; logits of all of them, or of `rows` (indices into ids)."""
        wanted = set(range(len(ids)) if rows is None else rows)
        self.batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            self.batch.token[i], self.batch.pos[i] = token, first + i
            self.batch.n_seq_id[i], self.batch.seq_id[i][0] = 1, 0
            self.batch.logits[i] = i in wanted
        if llama_cpp.llama_decode(self.context, self.batch) != 0:
            raise RuntimeError("llama_decode failed: " + "; ".join(_loud))
        pointer = llama_cpp.llama_get_logits(self.context)
        return np.ctypeslib.as_array(pointer, (len(wanted), self.vocab_size)).copy()

    def logits(self, ids: list) -> np.ndarray:
        self.clear()
        return self.decode(ids, 0)

    def greedy(self, ids: list, steps: int) -> list:
        self.clear()
        row, chosen = self.decode(ids, 0, range(len(ids) - 1, len(ids)))[0], []
        for i in range(steps):
            chosen.append(int(row.argmax()))
            if i + 1 < steps:
                row = self.decode(chosen[-1:], len(ids) + i)[0]
        return chosen


def relative_l2(found: np.ndarray, expected: np.ndarray) -> float:
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def worst(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(found.astype(np.float64) - expected).max())


def mean_nll(logits: np.ndarray, ids: list) -> float:
    rows = logits[:-1].astype(np.float64)
    peak = rows.max(-1)
    lse = peak + np.log(np.exp(rows - peak[:, None]).sum(-1))
    return float((lse - rows[np.arange(len(ids) - 1), ids[1:]]).mean())
