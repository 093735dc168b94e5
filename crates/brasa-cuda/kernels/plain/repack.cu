// repack_<format>: rows as the checkpoint stores them, to tiles in fragment order (../hopper/layout.cuh).
// unpack_16: rows of F16 or BF16 back from tiles.
// Grid: repack: a warp a sub, lane l writes what lane l of a product reads; blocks of 256. unpack_16: one thread an element.
//
// `largest` becomes a bound of the magnitudes (as f32 bits, which order like the numbers). Bound by memory: every byte moves twice.
#include "formats.cuh"

DEVICE void store_half(u8* to, const u8* from) {
    to[0] = from == nullptr ? 0 : from[0];
    to[1] = from == nullptr ? 0 : from[1];
}

// Where a warp writes, and what it reads: a sub of a tile, rows of outputs g and g + 8.
struct SubWrite {
    u8* unit;
    u8* sub;
    const u8* rows[2];
    u32 first;      // its first input
    u32 in_unit;    // its number in its unit
    u32 inputs, g, t, lane;

    // The row's block where it has element `k`, or null.
    DEVICE const u8* block(u32 half, u32 k, u32 len, u32 bytes) const {
        return rows[half] == nullptr || k >= inputs ? nullptr : rows[half] + (u64)(k / len) * bytes;
    }
    // Input of element `e` of step `s`.
    DEVICE u32 input(u32 s, u32 e) const { return first + s * 16 + 2 * t + e % 2 + e / 4 * 8; }
};

// `write` writes codes; `bound` writes what the codes of a sub share, and returns a bound of the magnitudes that the thread has seen.
template <u32 FORMAT>
struct Repack;

struct RepackHalves {
    static DEVICE void write(const SubWrite& w) {
        for (u32 s = 0; s < 4; ++s) {
            for (u32 e = 0; e < 8; ++e) {
                store_half(w.sub + s * 512 + w.lane * 16 + e * 2, w.block(e / 2 % 2, w.input(s, e), 1, 2));
            }
        }
    }
};

template <>
struct Repack<brasa::F16> : RepackHalves {
    static DEVICE float bound(const SubWrite&) { return 0.0f; }
};

template <>
struct Repack<brasa::BF16> : RepackHalves {
    static DEVICE float bound(const SubWrite& w) {
        float largest = 0.0f;
        for (u32 i = 0; i < 32; ++i) {
            const u8* at = w.block(i / 2 % 2, w.input(i / 8, i % 8), 1, 2);
            largest = fmaxf(largest, at == nullptr ? 0.0f : fabsf(brasa::bf16_value(at)));
        }
        return largest;
    }
};

// The 16 codes of a lane's nibbles: one word a step.
template <class Code>
DEVICE void write_nibbles(const SubWrite& w, Code code) {
    for (u32 s = 0; s < 4; ++s) {
        u32 word = 0;
        for (u32 e = 0; e < 8; ++e) {
            word |= (code(e / 2 % 2, w.input(s, e)) & 15) << (e / 2 * 4 + e % 2 * 16);
        }
        ((u32*)(w.sub + w.lane * 16))[s] = word;
    }
}

// f16 scales of blocks of 32 at the begin of a block: D32. Returns the largest magnitude.
DEVICE float write_scales(const SubWrite& w, u8* to, u32 bytes) {
    float largest = 0.0f;
    if (w.t == 0) {
        for (u32 i = 0; i < 4; ++i) {
            const u8* block = w.block(i / 2, w.first + i % 2 * 32, 32, bytes);
            store_half(to + w.g * 8 + i * 2, block);
            largest = fmaxf(largest, block == nullptr ? 0.0f : fabsf(half_at(block)));
        }
    }
    return largest;
}

template <>
struct Repack<brasa::Q8_0> {
    static const u32 LEN = 32, BYTES = 34;
    static DEVICE void write(const SubWrite& w) {
        for (u32 s = 0; s < 4; ++s) {
            for (u32 half = 0; half < 2; ++half) {
                u32 word = 0;
                for (u32 j = 0; j < 4; ++j) {
                    u32 e = half * 4 + j, k = w.input(s, e);
                    const u8* block = w.block(e / 2 % 2, k, LEN, BYTES);
                    word |= (block == nullptr ? 128u : (u32)(block[2 + k % 32] ^ 128)) << (8 * j);
                }
                *(u32*)(w.sub + s / 2 * 512 + w.lane * 16 + s % 2 * 8 + half * 4) = word;
            }
        }
    }
    static DEVICE float bound(const SubWrite& w) { return write_scales(w, w.sub + 1024, BYTES) * 128.0f; }
};

template <>
struct Repack<brasa::Q4_0> {
    static const u32 LEN = 32, BYTES = 18;
    static DEVICE void write(const SubWrite& w) {
        write_nibbles(w, [&](u32 half, u32 k) -> u32 {
            const u8* block = w.block(half, k, LEN, BYTES);
            return block == nullptr ? 8 : nibble(block + 2, k % 32);
        });
    }
    static DEVICE float bound(const SubWrite& w) { return write_scales(w, w.sub + 512, BYTES) * 8.0f; }
};

template <>
struct Repack<brasa::Q4_K> {
    static const u32 LEN = 256, BYTES = 144;
    static DEVICE void write(const SubWrite& w) {
        write_nibbles(w, [&](u32 half, u32 k) -> u32 {
            const u8* block = w.block(half, k, LEN, BYTES);
            u32 e = k % 256;
            return block == nullptr ? 0 : block[16 + e / 64 * 32 + e % 32] >> (e % 64 / 32 * 4) & 15;
        });
    }
    static DEVICE float bound(const SubWrite& w) {
        float largest = 0.0f;
        if (w.t != 0) {
            return largest;
        }
        for (u32 half = 0; half < 2; ++half) {
            const u8* block = w.block(half, w.first, LEN, BYTES);
            if (w.in_unit == 0) {
                store_half(w.unit + w.g * 8 + half * 2, block);
                store_half(w.unit + w.g * 8 + 4 + half * 2, block == nullptr ? nullptr : block + 2);
            }
            for (u32 i = 0; i < 2; ++i) {
                u32 scale = 0, min = 0;
                if (block != nullptr) {
                    const u8* packed = block + 4;
                    u32 j = w.in_unit * 2 + i, c = j % 4;
                    scale = j < 4 ? packed[c] & 63 : (packed[c + 8] & 15) | packed[c] >> 6 << 4;
                    min = j < 4 ? packed[c + 4] & 63 : packed[c + 8] >> 4 | packed[c + 4] >> 6 << 4;
                    float reach = fabsf(half_at(block)) * (float)scale * 15.0f + fabsf(half_at(block + 2)) * (float)min;
                    largest = fmaxf(largest, reach);
                }
                u8* to = w.sub + 512 + w.g * 8 + half * 2 + i;
                to[0] = (u8)scale;
                to[4] = (u8)min;
            }
        }
        return largest;
    }
};

template <>
struct Repack<brasa::Q6_K> {
    static const u32 LEN = 256, BYTES = 210;
    static DEVICE u32 code(const SubWrite& w, u32 half, u32 k) {
        const u8* b = w.block(half, k, LEN, BYTES);
        if (b == nullptr) {
            return 32;
        }
        u32 e = k % 256, c = e / 128, r = e % 128;
        u32 low = b[64 * c + r % 64] >> (r / 64 * 4) & 15, high = b[128 + 32 * c + r % 32] >> (r / 32 * 2) & 3;
        return low | high << 4;
    }
    static DEVICE void write(const SubWrite& w) {
        write_nibbles(w, [&](u32 half, u32 k) -> u32 { return code(w, half, k); });
        for (u32 pair = 0; pair < 2; ++pair) {
            u32 word = 0;
            for (u32 i = 0; i < 16; ++i) {
                u32 s = i / 8, e = i % 8;
                u32 upper = code(w, e / 2 % 2, w.input(pair * 2 + s, e)) >> 4;
                word |= upper << (brasa::t2_bit(s, e / 2) + e % 2 * 16);
            }
            *(u32*)(w.sub + 512 + w.lane * 8 + pair * 4) = word;
        }
    }
    static DEVICE float bound(const SubWrite& w) {
        float largest = 0.0f;
        if (w.t != 0) {
            return largest;
        }
        for (u32 half = 0; half < 2; ++half) {
            const u8* block = w.block(half, w.first, LEN, BYTES);
            if (w.in_unit == 0) {
                store_half(w.unit + w.g * 4 + half * 2, block == nullptr ? nullptr : block + 208);
            }
            for (u32 i = 0; i < 4; ++i) {
                u8 scale = block == nullptr ? 0 : block[192 + w.in_unit * 4 + i];
                w.sub[768 + w.g * 8 + half * 4 + i] = scale ^ 128;
                if (block != nullptr) {
                    largest = fmaxf(largest, fabsf(half_at(block + 208) * (float)(signed char)scale) * 32.0f);
                }
            }
        }
        return largest;
    }
};

template <u32 FORMAT>
DEVICE void repack(const RepackParams& p) {
    u64 i = thread_number();
    u32 warps = p.tiles * p.subs, number = (u32)(i / 32);
    if (number >= warps) {
        return;
    }
    const brasa::Geometry G = brasa::geometry(FORMAT);
    u32 tile = number / p.subs, sub = number % p.subs, g = lane() / 4, row = tile * p.tile_rows + g;
    SubWrite w;
    w.unit = p.to + tile * brasa::tile_bytes(FORMAT, p.subs) + (u64)(sub / G.unit_subs) * brasa::unit_bytes(FORMAT);
    w.in_unit = sub % G.unit_subs;
    w.sub = w.unit + G.header_bytes + w.in_unit * G.sub_bytes;
    w.rows[0] = row < p.lower_rows ? p.source + (u64)row * p.row_bytes : nullptr;
    w.rows[1] = row < p.upper_rows ? p.source + (u64)(p.upper_start + row) * p.row_bytes : nullptr;
    w.first = sub * 64;
    w.inputs = p.inputs;
    w.g = g;
    w.t = lane() % 4;
    w.lane = lane();
    Repack<FORMAT>::write(w);
    float largest = warp_max(Repack<FORMAT>::bound(w));
    if (lane() == 0 && largest > __uint_as_float(*p.largest)) {
        atomicMax(p.largest, __float_as_uint(largest));
    }
}

#define BRASA_REPACK(name, Format) \
    KERNEL(repack_##name, RepackParams) { repack<Format::FORMAT>(p); }
TILE_FORMATS(BRASA_REPACK)

KERNEL(unpack_16, UnpackParams) {
    u64 i = thread_number();
    if (i >= (u64)p.rows * p.inputs) {
        return;
    }
    u32 row = (u32)(i / p.inputs), k = (u32)(i % p.inputs);
    u32 n = p.place == PLACE_TILES ? row : row / 8 * 16 + row % 8 + (p.place == PLACE_UPPER ? 8 : 0);
    const brasa::Place at = brasa::place(n % 16, k % 16);
    const u8* sub = p.source + (u64)(n / 16) * brasa::tile_bytes(brasa::F16, p.subs) + (u64)(k / 64) * 2048;
    ((unsigned short*)p.to)[i] = *(const unsigned short*)(sub + k % 64 / 16 * 512 + at.lane * 16 + at.element * 2);
}
