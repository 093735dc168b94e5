// Decode, rung by rung, on the shapes of real models with random weights. See docs/performance/cuda.md.
//
//   ladder check            small models of every format against an f64 reference on the host, every rung
//   ladder MODEL FORMAT DEPTH   times of every rung; MODEL: 1b, 0.6b, 8b; FORMAT: f16, q8_0, q4_0, q4_k
//   ladder repeat MODEL FORMAT DEPTH    microseconds of each instruction, repeated
//   ladder profile MODEL FORMAT DEPTH   clocks of each phase (built with -DBRASA_STAMPS)
// IN_FLIGHT=n in the environment: slots on their way at most.
#define BRASA_BENCH
#include "../kernels/hopper/decode.cuh"
#include "common.cuh"
using namespace bench;

struct Model {
    const char* name;
    uint32_t layers, hidden, heads, kv_heads, head_dim, ffn, vocab;
    bool qk_norm, interleaved;
    float theta;
    uint32_t window;
    float softcap;
};
const Model LLAMA_1B{"Llama-3.2-1B", 16, 2048, 32, 8, 64, 8192, 128256, false, true, 500000.0f, 0, 0};
const Model QWEN_06B{"Qwen3-0.6B", 28, 1024, 16, 8, 128, 3072, 151936, true, false, 1000000.0f, 0, 0};
const Model LLAMA_8B{"Llama-3.1-8B", 32, 4096, 32, 8, 128, 14336, 128256, false, true, 500000.0f, 0, 0};

// Slots that a producer has on their way at most.
uint32_t in_flight = 3;

struct Formats { uint32_t layers, down, head; };

struct Layer { Weight qkv, o, gate_up, down; float *attn_norm, *ffn_norm, *q_norm, *k_norm; };

struct Built {
    Model m;
    std::vector<Layer> layers;
    Weight head;
    float *final_norm, *frequencies;
    uint8_t* pool;
    uint64_t page_bytes, pool_bytes;
    uint32_t max_pages, sms;
    uint64_t *h, *qkv, *attended, *act, *partials;  // large enough for tagged values
    float* logits;
    uint64_t *candidates, *tables, *tokens;
    uint32_t* barrier;
    Row* rows;
    Instr* program;
    std::vector<Instr> instrs;
    uint64_t weight_bytes;  // read a step
    uint32_t sequence = 0;

    Built(const Model& model, Formats f, uint32_t depth, uint32_t sms_) : m(model), sms(sms_) {
        const uint32_t qkv_rows = (m.heads + 2 * m.kv_heads) * m.head_dim;
        uint64_t seed = 1;
        auto norm = [&](uint32_t n) {
            float* p = device<float>(n);
            fill_floats<<<64, 256>>>(p, n, 1.0f, 0.5f, seed++);
            return p;
        };
        weight_bytes = 0;
        for (uint32_t i = 0; i < m.layers; i++) {
            Layer l;
            l.qkv = weight(f.layers, qkv_rows, m.hidden, seed++);
            l.o = weight(f.layers, m.hidden, m.heads * m.head_dim, seed++);
            l.gate_up = weight(f.layers, 2 * m.ffn, m.hidden, seed++);
            l.down = weight(f.down, m.hidden, m.ffn, seed++);
            l.attn_norm = norm(m.hidden);
            l.ffn_norm = norm(m.hidden);
            l.q_norm = m.qk_norm ? norm(m.head_dim) : nullptr;
            l.k_norm = m.qk_norm ? norm(m.head_dim) : nullptr;
            weight_bytes += l.qkv.bytes + l.o.bytes + l.gate_up.bytes + l.down.bytes;
            layers.push_back(l);
        }
        head = weight(f.head, m.vocab, m.hidden, seed++);
        weight_bytes += head.bytes;
        final_norm = norm(m.hidden);
        std::vector<float> freq(m.head_dim / 2);
        for (uint32_t i = 0; i < freq.size(); i++) freq[i] = powf(m.theta, -2.0f * i / m.head_dim);
        frequencies = device<float>(freq.size());
        CHECK(cudaMemcpy(frequencies, freq.data(), freq.size() * 4, cudaMemcpyHostToDevice));
        max_pages = depth / PAGE_POSITIONS + 2;
        const uint64_t cache = uint64_t(m.kv_heads) * PAGE_POSITIONS * m.head_dim * 2;
        page_bytes = 2 * cache * m.layers;
        pool_bytes = page_bytes * (max_pages + 1);
        pool = device<uint8_t>(pool_bytes);
        fill_halves<<<2048, 256>>>(reinterpret_cast<__half*>(pool), pool_bytes / 2, 1.0f, seed++);
        std::vector<uint64_t> t(max_pages);
        for (uint32_t i = 0; i < max_pages; i++) t[i] = address(pool) + (max_pages - i) * page_bytes;  // not in order
        tables = device<uint64_t>(max_pages);
        CHECK(cudaMemcpy(tables, t.data(), 8 * max_pages, cudaMemcpyHostToDevice));
        h = device<uint64_t>(m.hidden);
        qkv = device<uint64_t>(qkv_rows);
        attended = device<uint64_t>(m.heads * m.head_dim);
        act = device<uint64_t>(m.ffn);
        partials = device<uint64_t>(uint64_t(m.heads) * max_pages * (m.head_dim + 2));
        logits = device<float>(m.vocab);
        candidates = device<uint64_t>(4 * sms + 4);
        tokens = device<uint64_t>(4096);
        barrier = device<uint32_t>(64);
        rows = device<Row>(16);
        build();
        CHECK(cudaDeviceSynchronize());
    }

    static uint64_t address(const void* p) { return reinterpret_cast<uint64_t>(p); }

    void build() {
        uint32_t rotation = 0;
        auto linear = [&](const Weight& w, uint32_t outputs, const void* x, const void* y, uint32_t flags, uint32_t x_back) {
            Instr in{};
            const uint32_t tiles = (w.n + 15) / 16;
            in.op = LINEAR; in.format = w.format; in.flags = flags; in.tiles_each = tiles / sms; in.tiles_odd = tiles % sms;
            in.tile_bytes = tile_bytes(w.format, w.subs); in.piece_bytes = SLOT_BYTES / unit_bytes(w.format) * unit_bytes(w.format);
            in.subs = w.subs; in.inputs = w.k; in.outputs = outputs; in.scale = 1.0f; in.eps = 1e-5f; in.x_back = x_back; in.weights = address(w.data);
            in.x = address(x); in.y = address(y);
            const uint64_t share = uint64_t(in.tiles_each + (in.tiles_odd > 0)) * in.tile_bytes;
            if (in.tile_bytes >= w.subs * 1024 && share <= 18 * SLOT_BYTES) in.flags |= YIELDS;
            in.rotation = rotation;
            // The next layer's odd tiles go to those who had none.
            rotation = (rotation + sms - in.tiles_odd) % sms;
            return in;
        };
        instrs.clear();
        Instr e{};
        e.op = EMBED; e.format = head.format; e.subs = head.subs; e.inputs = m.hidden; e.outputs = m.hidden; e.scale = 30.0f;
        e.weights = address(head.data); e.y = address(h);
        instrs.push_back(e);
        const uint64_t cache = uint64_t(m.kv_heads) * PAGE_POSITIONS * m.head_dim * 2;
        for (uint32_t i = 0; i < m.layers; i++) {
            const Layer& l = layers[i];
            Instr q = linear(l.qkv, l.qkv.n, h, qkv, NORM, 1);
            q.norm_weight = address(l.attn_norm);
            instrs.push_back(q);
            Instr a{};
            a.op = ATTENTION; a.flags = m.interleaved ? INTERLEAVED : 0; a.scale = 1.0f; a.eps = 1e-5f; a.softcap = m.softcap;
            a.attention_scale = 1.0f / sqrtf(float(m.head_dim)); a.x_back = 1; a.heads = m.heads; a.kv_heads = m.kv_heads;
            a.head_dim = m.head_dim; a.rotary_dim = m.head_dim; a.window = m.window; a.x = address(qkv); a.y = address(attended);
            a.q_norm = address(l.q_norm); a.k_norm = address(l.k_norm);
            a.keys_offset = 2 * cache * i; a.values_offset = 2 * cache * i + cache; a.kv_offset = m.heads * m.head_dim;
            instrs.push_back(a);
            a.op = COMBINE;
            instrs.push_back(a);
            Instr o = linear(l.o, m.hidden, attended, h, RESIDUAL, 1);
            o.residual = address(h); o.residual_back = 4;
            instrs.push_back(o);
            Instr g = linear(l.gate_up, m.ffn, h, act, NORM | PAIRED, 1);
            g.norm_weight = address(l.ffn_norm);
            instrs.push_back(g);
            Instr d = linear(l.down, m.hidden, act, h, RESIDUAL, 1);
            d.residual = address(h); d.residual_back = 2;
            instrs.push_back(d);
        }
        Instr f = linear(head, m.vocab, h, logits, NORM | DRAW | LOGITS, 1);
        f.norm_weight = address(final_norm);
        instrs.push_back(f);
        program = device<Instr>(instrs.size());
        CHECK(cudaMemcpy(program, instrs.data(), instrs.size() * sizeof(Instr), cudaMemcpyHostToDevice));
    }

    void start(uint32_t token, uint32_t index) {
        Row r{token, index, index, 0};
        CHECK(cudaMemcpy(rows, &r, sizeof r, cudaMemcpyHostToDevice));
    }

    Launch launch(uint32_t steps, uint32_t first, uint32_t count) {
        Launch l{};
        l.program = program; l.count = count; l.steps = steps; l.rows = 1; l.first = first; l.sequence = sequence; l.prefetch = 1;
        l.barriers = count > 1; l.draws = 0; l.in_flight = in_flight; l.rotary = m.head_dim; l.frequencies = frequencies; l.barrier = barrier; l.states = rows; l.tables = tables; l.candidates = candidates; l.tokens = tokens;
        l.partials = address(partials); l.max_pages = max_pages;
        return l;
    }
    std::vector<uint32_t> drawn(uint32_t steps) const {
        std::vector<uint64_t> words(steps);
        CHECK(cudaMemcpy(words.data(), tokens, steps * 8, cudaMemcpyDeviceToHost));
        return std::vector<uint32_t>(words.begin(), words.end());
    }
    uint64_t kv_bytes(uint32_t depth) const { return uint64_t(depth) * m.layers * m.kv_heads * m.head_dim * 4; }
};


enum Rung { GRAPH, GRAPH_PDL, PERSISTENT, PREFETCH, TAGGED, RUNGS };
const char* RUNG_NAMES[] = {"1 kernel per operation, graph", "2 the same, programmatic launch", "3 persistent, barriers, no prefetch", "4 persistent, barriers, prefetch", "5 persistent, tagged values, prefetch"};

void run_persistent(Built& b, Rung rung, uint32_t steps, cudaStream_t s) {
    Launch l = b.launch(steps, 0, b.instrs.size());
    l.prefetch = rung != PERSISTENT;
    l.draws = 1;
    CHECK(cudaMemsetAsync(b.barrier, 0, 4, s));
    void* args[] = {&l};
    void* kernel = rung == TAGGED ? (void*)interpret_tagged : (void*)interpret_barrier;
    CHECK(cudaLaunchCooperativeKernel(kernel, b.sms, THREADS, args, SHARED_BYTES, s));
    b.sequence += steps * b.instrs.size();
}

// One step, an instruction a kernel. The sequence numbers are those of a launch of one instruction.
void launch_each(Built& b, bool pdl, cudaStream_t s, bool skip_combine) {
    for (uint32_t i = 0; i < b.instrs.size(); i++) {
        if (skip_combine && b.instrs[i].op == COMBINE) continue;
        Launch l = b.launch(1, i, 1);
        cudaLaunchConfig_t c{};
        c.gridDim = b.sms; c.blockDim = THREADS; c.dynamicSmemBytes = SHARED_BYTES; c.stream = s;
        cudaLaunchAttribute a{};
        a.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        a.val.programmaticStreamSerializationAllowed = 1;
        c.attrs = &a;
        c.numAttrs = pdl ? 1 : 0;
        CHECK(cudaLaunchKernelEx(&c, interpret_barrier, l));
    }
}

// ---- the reference: one step in f64 on the host ----

struct Host {
    const Built& b;
    std::vector<uint8_t> pool;
    std::vector<std::vector<uint8_t>> weights;
    explicit Host(const Built& built) : b(built), pool(built.pool_bytes) { CHECK(cudaMemcpy(pool.data(), b.pool, b.pool_bytes, cudaMemcpyDeviceToHost)); }
    std::vector<double> multiply(const Weight& w, const std::vector<double>& x) const {
        std::vector<uint8_t> data(w.bytes);
        CHECK(cudaMemcpy(data.data(), w.data, w.bytes, cudaMemcpyDeviceToHost));
        std::vector<double> y(w.n);
        for (uint32_t n = 0; n < w.n; n++) {
            double sum = 0;
            for (uint32_t k = 0; k < w.k; k++) sum += double(weight_at(w.format, data.data(), w.subs, n, k)) * x[k];
            y[n] = sum;
        }
        return y;
    }
    static std::vector<float> floats(const float* p, uint32_t n) {
        std::vector<float> v(n);
        CHECK(cudaMemcpy(v.data(), p, n * 4, cudaMemcpyDeviceToHost));
        return v;
    }
    static std::vector<double> norm(const std::vector<double>& x, const float* w, float eps) {
        const auto weight = floats(w, x.size());
        double sum = 0;
        for (double v : x) sum += v * v;
        const double scale = 1.0 / sqrt(sum / x.size() + eps);
        std::vector<double> y(x.size());
        for (size_t i = 0; i < x.size(); i++) y[i] = x[i] * scale * weight[i];
        return y;
    }
    double cached(uint64_t offset, uint32_t head, uint32_t j, uint32_t e) const {
        const uint32_t E = b.m.head_dim, page = b.max_pages - j / PAGE_POSITIONS, p = j % PAGE_POSITIONS;
        const uint64_t at = page * b.page_bytes + offset + (uint64_t(head) * PAGE_POSITIONS + p) * E * 2 + kv_piece(E, p, e / 8) * 16 + e % 8 * 2;
        return half_value(pool.data() + at);
    }
    std::vector<double> logits(uint32_t token, uint32_t index) {
        const Model& m = b.m;
        const uint32_t E = m.head_dim, group = m.heads / m.kv_heads;
        std::vector<uint8_t> data(b.head.bytes);
        CHECK(cudaMemcpy(data.data(), b.head.data, b.head.bytes, cudaMemcpyDeviceToHost));
        std::vector<double> h(m.hidden);
        for (uint32_t k = 0; k < m.hidden; k++) h[k] = 30.0 * weight_at(b.head.format, data.data(), b.head.subs, token, k);
        const auto freq = floats(b.frequencies, E / 2);
        auto turn = [&](double* x, const float* w) {
            if (w) {
                std::vector<double> v(x, x + E);
                v = norm(v, w, 1e-5f);
                std::copy(v.begin(), v.end(), x);
            }
            for (uint32_t i = 0; i < E / 2; i++) {
                const double angle = double(float(index) * freq[i]), c = cos(angle), s = sin(angle);
                const uint32_t p = m.interleaved ? 2 * i : i, q = m.interleaved ? 2 * i + 1 : i + E / 2;
                const double a = x[p], d = x[q];
                x[p] = a * c - d * s;
                x[q] = a * s + d * c;
            }
        };
        const uint64_t cache = uint64_t(m.kv_heads) * PAGE_POSITIONS * E * 2;
        for (uint32_t i = 0; i < m.layers; i++) {
            const Layer& l = b.layers[i];
            auto qkv = multiply(l.qkv, norm(h, l.attn_norm, 1e-5f));
            for (uint32_t n = 0; n < m.heads; n++) turn(&qkv[n * E], l.q_norm);
            for (uint32_t n = 0; n < m.kv_heads; n++) turn(&qkv[(m.heads + n) * E], l.k_norm);
            std::vector<double> out(m.heads * E);
            for (uint32_t n = 0; n < m.heads; n++) {
                const uint32_t g = n / group, begin = m.window && index + 1 > m.window ? index + 1 - m.window : 0;
                std::vector<double> s(index + 1);
                double top = -1e300, mass = 0;
                for (uint32_t j = begin; j <= index; j++) {
                    double dot = 0;
                    for (uint32_t e = 0; e < E; e++) dot += qkv[n * E + e] * (j == index ? qkv[(m.heads + g) * E + e] : cached(2 * cache * i, g, j, e));
                    dot /= sqrt(double(E));
                    s[j] = m.softcap > 0 ? m.softcap * tanh(dot / m.softcap) : dot;
                    top = std::max(top, s[j]);
                }
                for (uint32_t j = begin; j <= index; j++) mass += s[j] = exp(s[j] - top);
                for (uint32_t j = begin; j <= index; j++) {
                    for (uint32_t e = 0; e < E; e++) {
                        out[n * E + e] += s[j] / mass * (j == index ? qkv[(m.heads + m.kv_heads + g) * E + e] : cached(2 * cache * i + cache, g, j, e));
                    }
                }
            }
            auto o = multiply(l.o, out);
            for (uint32_t k = 0; k < m.hidden; k++) h[k] += o[k];
            auto gu = multiply(l.gate_up, norm(h, l.ffn_norm, 1e-5f));
            std::vector<double> act(m.ffn);
            for (uint32_t k = 0; k < m.ffn; k++) {
                const double gate = gu[k / 8 * 16 + k % 8], up = gu[k / 8 * 16 + 8 + k % 8];
                act[k] = gate / (1 + exp(-gate)) * up;
            }
            auto d = multiply(l.down, act);
            for (uint32_t k = 0; k < m.hidden; k++) h[k] += d[k];
        }
        return multiply(b.head, norm(h, b.final_norm, 1e-5f));
    }
};

struct Difference { double relative, worst; };
Difference compare(const std::vector<float>& found, const std::vector<double>& expected) {
    double num = 0, den = 0, worst = 0, largest = 0;
    for (size_t i = 0; i < expected.size(); i++) {
        const double d = std::isfinite(found[i]) ? found[i] - expected[i] : 1e30;
        num += d * d;
        den += expected[i] * expected[i];
        worst = std::max(worst, fabs(d));
        largest = std::max(largest, fabs(expected[i]));
    }
    return {sqrt(num / den), worst / largest};
}

std::vector<float> logits_of(Built& b) { return Host::floats(b.logits, b.m.vocab); }
void poison(Built& b) { CHECK(cudaMemset(b.logits, 0xff, b.m.vocab * 4)); }

int check(int sms) {
    int failures = 0;
    cudaStream_t s;
    CHECK(cudaStreamCreate(&s));
    struct Case { Model m; Formats f; uint32_t index; };
    const Model a{"small, E 64", 2, 512, 8, 2, 64, 1536, 3000, false, true, 10000.0f, 0, 0};
    const Model c{"small, E 128, qk-norm", 2, 768, 4, 2, 128, 1280, 2000, true, false, 10000.0f, 0, 0};
    Model windowed = a; windowed.name = "small, window 300, soft-cap"; windowed.window = 300; windowed.softcap = 5.0f;
    Model narrow = a; narrow.name = "small, hidden 192"; narrow.hidden = 192;
    Model wide = c; wide.name = "small, ffn 9216"; wide.ffn = 9216;
    std::vector<Case> cases = {
        {a, {F16, F16, F16}, 0}, {a, {F16, F16, F16}, 5}, {a, {F16, F16, F16}, 255}, {a, {F16, F16, F16}, 256}, {a, {F16, F16, F16}, 700},
        {c, {F16, F16, F16}, 3}, {c, {F16, F16, F16}, 127}, {c, {F16, F16, F16}, 1300}, {windowed, {F16, F16, F16}, 100}, {windowed, {F16, F16, F16}, 1100},
        {a, {Q8_0, Q8_0, Q8_0}, 40}, {c, {Q8_0, Q8_0, Q8_0}, 600}, {a, {Q4_0, Q4_0, Q4_0}, 40}, {c, {Q4_0, Q4_0, Q8_0}, 600},
        {a, {Q4_K, Q4_K, Q4_K}, 40}, {c, {Q4_K, Q6_K, Q6_K}, 600}, {a, {Q6_K, Q6_K, Q6_K}, 40}, {wide, {Q4_0, Q4_0, Q6_K}, 20}, {wide, {F16, F16, F16}, 20}, {narrow, {F16, F16, F16}, 20}, {narrow, {Q4_0, Q4_0, Q4_0}, 20},
    };
    for (auto& t : cases) {
        Built b(t.m, t.f, t.index + 64, sms);
        Host host(b);
        const auto expected = host.logits(17, t.index);
        std::vector<float> first;
        for (int rung = 0; rung < RUNGS; rung++) {
            CHECK(cudaMemcpy(b.pool, host.pool.data(), b.pool_bytes, cudaMemcpyHostToDevice));
            b.start(17, t.index);
            poison(b);
            if (rung <= GRAPH_PDL) { launch_each(b, rung == GRAPH_PDL, s, false); }
            else run_persistent(b, Rung(rung), 1, s);
            CHECK(cudaStreamSynchronize(s));
            const auto found = logits_of(b);
            const Difference d = compare(found, expected);
            if (rung == 0) first = found;
            // Tagged values are rounded to 24 bits.
            const bool same = rung == TAGGED ? compare(found, {first.begin(), first.end()}).relative < 1e-3 : memcmp(first.data(), found.data(), found.size() * 4) == 0;
            const bool good = d.relative < 3e-3 && d.worst < 1e-2 && same;
            failures += !good;
            if (rung == 0 || !good) printf("%-28s %-5s/%-5s/%-5s index %5u rung %d: relative %.2e worst %.2e %s%s\n", t.m.name, name(t.f.layers), name(t.f.down), name(t.f.head), t.index, rung + 1, d.relative, d.worst, same ? "" : rung == TAGGED ? "FAR FROM RUNG 1 " : "NOT THE BITS OF RUNG 1 ", good ? "ok" : "WRONG");
        }
        // A chain of 40 equals 40 launches of one step.
        for (Rung rung : {PERSISTENT, PREFETCH, TAGGED}) {
            const auto decode = [&](uint32_t steps) {
                CHECK(cudaMemcpy(b.pool, host.pool.data(), b.pool_bytes, cudaMemcpyHostToDevice));
                b.start(17, t.index);
                std::vector<uint32_t> tokens;
                while (tokens.size() < 40) {
                    run_persistent(b, rung, steps, s);
                    CHECK(cudaStreamSynchronize(s));
                    const auto drawn = b.drawn(steps);
                    tokens.insert(tokens.end(), drawn.begin(), drawn.end());
                }
                return tokens;
            };
            const auto alone = decode(1);
            const auto last = logits_of(b);
            const bool same = decode(40) == alone && memcmp(last.data(), logits_of(b).data(), last.size() * 4) == 0;
            failures += !same;
            if (!same) printf("%-28s index %u rung %d: chain differs from single steps\n", t.m.name, t.index, rung + 1);
        }
        for (auto& l : b.layers) for (auto* p : {l.qkv.data, l.o.data, l.gate_up.data, l.down.data}) CHECK(cudaFree(p));
        CHECK(cudaFree(b.pool));
    }
    printf("check: %d failures in %zu cases\n", failures, cases.size());
    return failures != 0;
}

void times(const Model& m, const char* label, Formats f, uint32_t depth, int sms, double bandwidth) {
    cudaStream_t s;
    CHECK(cudaStreamCreate(&s));
    const uint32_t steps = 64;
    Built b(m, f, depth + 4 * steps, sms);
    const double bytes = double(b.weight_bytes) + double(b.kv_bytes(depth + steps / 2));
    const bool one_page = depth + 2 * steps <= PAGE_POSITIONS;
    printf("-- %s %s depth %u: %.3f GB a token, roofline %.0f tokens/s at %.0f GB/s\n", m.name, label, depth, bytes * 1e-9, bandwidth * 1e9 / bytes, bandwidth);
    std::vector<uint32_t> reference;
    for (int rung = 0; rung < RUNGS; rung++) {
        double us;
        double least;
        if (rung <= GRAPH_PDL) {
            b.start(17, depth);
            cudaGraph_t graph;
            cudaGraphExec_t exec;
            CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
            launch_each(b, rung == GRAPH_PDL, s, one_page);
            CHECK(cudaStreamEndCapture(s, &graph));
            CHECK(cudaGraphInstantiate(&exec, graph, 0));
            CHECK(cudaGraphUpload(exec, s));
            Timing t = time_it(5, 31, [&] { CHECK(cudaGraphLaunch(exec, s)); }, s);
            us = t.median_ms * 1e3;
            least = t.least_ms * 1e3;
            CHECK(cudaGraphExecDestroy(exec));
        } else {
            Timing t = time_it(1, 5, [&] { run_persistent(b, Rung(rung), steps, s); }, s, [&] { b.start(17, depth); });
            us = t.median_ms * 1e3 / steps;
            least = t.least_ms * 1e3 / steps;
            const std::vector<uint32_t> tokens = b.drawn(steps);
            if (reference.empty()) reference = tokens;
            if (rung != TAGGED && reference != tokens) printf("TOKENS DIFFER FROM RUNG 3\n");
        }
        printf("%-40s %8.1f us  %7.0f tokens/s  %5.1f %% of read bandwidth  (least %.1f us)\n", RUNG_NAMES[rung], us, 1e6 / us, bytes / us * 1e-3 / bandwidth * 100, least);
        fflush(stdout);
    }
}

#ifdef BRASA_STAMPS
// Clocks of each phase, the mean over the layers: of multiprocessor 0, and the mean over all that took part.
void profile(const Model& m, const char* label, Formats f, uint32_t depth, int sms, Rung rung) {
    const uint32_t steps = 8;
    Built b(m, f, depth + 4 * steps, sms);
    const uint64_t n = b.instrs.size();
    uint64_t* stamps = device<uint64_t>(n * 8 * sms);
    for (int round = 0; round < 2; round++) {
        CHECK(cudaMemset(stamps, 0, n * 64 * sms));
        b.start(17, depth);
        Launch l = b.launch(steps, 0, n);
        l.draws = 1;
        l.stamps = stamps;
        l.prefetch = rung != PERSISTENT;
        CHECK(cudaMemset(b.barrier, 0, 4));
        void* args[] = {&l};
        CHECK(cudaLaunchCooperativeKernel(rung == TAGGED ? (void*)interpret_tagged : (void*)interpret_barrier, b.sms, THREADS, args, SHARED_BYTES));
        b.sequence += steps * n;
        CHECK(cudaDeviceSynchronize());
    }
    std::vector<uint64_t> t(n * 8 * sms);
    CHECK(cudaMemcpy(t.data(), stamps, n * 64 * sms, cudaMemcpyDeviceToHost));
    printf("-- profile %s %s depth %u %s: clocks of phases 1..7 since the phase before (0: not passed)\n", m.name, label, depth, RUNG_NAMES[rung]);
    const char* kinds[] = {"embed", "qkv", "attention", "combine", "o", "gate_up", "down", "head"};
    for (int kind = 0; kind < 8; kind++) {
        for (int who : {0, 5, 77, -1}) {
            double sum[8] = {}, total = 0;
            int count[8] = {}, totals = 0;
            for (uint64_t i = 0; i < n; i++) {
                const int k = i == 0 ? 0 : i + 1 == n ? 7 : 1 + (i - 1) % 6;
                if (k != kind) continue;
                for (int sm = 0; sm < sms; sm++) {
                    if (who >= 0 && sm != who) continue;
                    const uint64_t* p = &t[(uint64_t(sm) * n + i) * 8];
                    uint64_t last = p[0];
                    for (int j = 1; j < 8; j++) {
                        if (p[j] == 0) continue;
                        sum[j] += double(p[j] - last);
                        count[j]++;
                        last = p[j];
                    }
                    total += double(p[7] - p[0]);
                    totals++;
                }
            }
            printf("%-10s sm %3d ", kinds[kind], who);
            for (int j = 1; j < 8; j++) printf(" %7.0f", count[j] ? sum[j] / count[j] : 0.0);
            printf("   all %7.0f\n", total / totals);
        }
    }
    fflush(stdout);
}
#endif

// Microseconds of one instruction, repeated: its weights stay in L2, its code in the instruction cache.
void repeated(const Model& m, const char* label, Formats f, uint32_t depth, int sms) {
    Built b(m, f, depth + 64, sms);
    const std::vector<Instr> all = b.instrs;
    const char* kinds[] = {"qkv", "attention", "combine", "o", "gate_up", "down"};
    printf("-- %s %s depth %u, one instruction repeated, us with its barrier:", m.name, label, depth);
    for (int k = 0; k < 6; k++) {
        double ms[2];
        for (int round = 0; round < 2; round++) {
            const uint32_t n = round ? 220 : 20;
            std::vector<Instr> program(1, all[0]);
            for (uint32_t i = 0; i < n; i++) program.push_back(all[1 + k]);
            Instr* p = device<Instr>(program.size());
            CHECK(cudaMemcpy(p, program.data(), program.size() * sizeof(Instr), cudaMemcpyHostToDevice));
            Timing t = time_it(2, 7, [&] {
                b.start(17, depth);
                Launch l = b.launch(1, 0, program.size());
                l.program = p;
                CHECK(cudaMemsetAsync(b.barrier, 0, 4));
                void* args[] = {&l};
                CHECK(cudaLaunchCooperativeKernel((void*)interpret_barrier, b.sms, THREADS, args, SHARED_BYTES));
            });
            ms[round] = t.median_ms;
            CHECK(cudaFree(p));
        }
        printf("  %s %.2f", kinds[k], (ms[1] - ms[0]) * 1e3 / 200);
    }
    printf("\n");
    fflush(stdout);
}

int main(int argc, char** argv) {
    cudaDeviceProp prop;
    CHECK(cudaGetDeviceProperties(&prop, 0));
    const int sms = prop.multiProcessorCount;
    for (void* k : {(void*)interpret_barrier, (void*)interpret_tagged}) CHECK(cudaFuncSetAttribute(k, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES));
    if (argc >= 2 && !strcmp(argv[1], "check")) return check(sms);
    if (argc < 4) { fprintf(stderr, "ladder check | ladder [repeat|profile] MODEL FORMAT DEPTH [GB/s]\n"); return 1; }
    std::string mode = argv[1];
    if (const char* n = getenv("IN_FLIGHT")) in_flight = atoi(n);
    if (mode == "repeat" || mode == "profile") argv++, argc--; else mode = "times";
    const std::string model = argv[1], format = argv[2];
    const Model& m = model == "1b" ? LLAMA_1B : model == "0.6b" ? QWEN_06B : LLAMA_8B;
    const Formats f = format == "f16" ? Formats{F16, F16, F16} : format == "q8_0" ? Formats{Q8_0, Q8_0, Q8_0} : format == "q4_0" ? Formats{Q4_0, Q4_0, Q6_K} : format == "q4_k" ? Formats{Q4_K, Q6_K, Q6_K} : Formats{Q4_K, Q4_K, Q6_K};
    if (mode == "repeat") repeated(m, format.c_str(), f, atoi(argv[3]), sms);
#ifdef BRASA_STAMPS
    else if (mode == "profile") for (Rung r : {PREFETCH, TAGGED}) profile(m, format.c_str(), f, atoi(argv[3]), sms, r);
#endif
    else times(m, format.c_str(), f, atoi(argv[3]), sms, argc > 4 ? atof(argv[4]) : 4470.0);
    return 0;
}
