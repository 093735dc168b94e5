// repack_<stored>: rows as the checkpoint stores them, to tiles in fragment order (../hopper/layout.cuh).
// row_norms: the largest squared norm of the rows of a weight in tiles.
// unpack_16: rows of F16 or BF16 back from tiles.
// Grid: repack: a warp a sub, lane l writes what lane l of a product reads; blocks of 256. row_norms: a block of 256
// threads a tile. unpack_16: one thread an element.
//
// `largest` becomes a bound of the magnitudes (as f32 bits, which order like the numbers). Bound by memory: every byte moves twice.
#include "blocks.cuh"
#include "planes.cuh"

// Stored formats, each with the format that it becomes. `write` writes codes; `bound` writes what the codes of a sub share, and returns
// a bound of the magnitudes that the thread has seen.

struct FromHalves {
    static DEVICE void write(const RepackParams&, const SubWrite& w) {
        for (u32 s = 0; s < 4; ++s) {
            for (u32 e = 0; e < 8; ++e) {
                store_half(w.sub + s * 512 + w.lane * 16 + e * 2, w.block(e / 2 % 2, w.input(s, e), 1, 2));
            }
        }
    }
};

struct FromF16 : FromHalves {
    static const u32 TO = brasa::F16;
    static DEVICE float bound(const RepackParams&, const SubWrite&) { return 0.0f; }
};

struct FromBF16 : FromHalves {
    static const u32 TO = brasa::BF16;
    static DEVICE float bound(const RepackParams&, const SubWrite& w) {
        float largest = 0.0f;
        for (u32 i = 0; i < 32; ++i) {
            const u8* at = w.block(i / 2 % 2, w.input(i / 8, i % 8), 1, 2);
            largest = fmaxf(largest, at == nullptr ? 0.0f : fabsf(brasa::bf16_value(at)));
        }
        return largest;
    }
};

struct FromQ8_0 {
    static const u32 TO = brasa::Q8_0;
    static DEVICE void write(const RepackParams&, const SubWrite& w) {
        write_bytes(w, [&](u32 half, u32 k) -> u32 {
            const u8* block = w.block(half, k, 32, 34);
            return block == nullptr ? 128u : (u32)(block[2 + k % 32] ^ 128);
        });
    }
    static DEVICE float bound(const RepackParams&, const SubWrite& w) { return write_scales(w, w.sub + 1024, 34, 128.0f); }
};

struct FromQ5_0 {
    static const u32 TO = brasa::Q8_0;
    static DEVICE void write(const RepackParams&, const SubWrite& w) {
        write_bytes(w, [&](u32 half, u32 k) -> u32 {
            const u8* block = w.block(half, k, 32, 22);
            return block == nullptr ? 128 : 128 - 16 + (nibble(block + 6, k % 32) | bit(block + 2, k % 32) << 4);
        });
    }
    static DEVICE float bound(const RepackParams&, const SubWrite& w) { return write_scales(w, w.sub + 1024, 22, 16.0f); }
};

struct FromIQ4_NL {
    static const u32 TO = brasa::Q8_0;
    static DEVICE void write(const RepackParams&, const SubWrite& w) {
        write_bytes(w, [&](u32 half, u32 k) -> u32 {
            const u8* block = w.block(half, k, 32, 18);
            return block == nullptr ? 128 : brasa::iq4_byte(nibble(block + 2, k % 32));
        });
    }
    static DEVICE float bound(const RepackParams&, const SubWrite& w) { return write_scales(w, w.sub + 1024, 18, 127.0f); }
};

struct FromQ4_0 {
    static const u32 TO = brasa::Q4_0;
    static DEVICE void write(const RepackParams&, const SubWrite& w) {
        write_nibbles(w, [&](u32 half, u32 k) -> u32 {
            const u8* block = w.block(half, k, 32, 18);
            return block == nullptr ? 8 : nibble(block + 2, k % 32);
        });
    }
    static DEVICE float bound(const RepackParams&, const SubWrite& w) { return write_scales(w, w.sub + 512, 18, 8.0f); }
};

struct FromQ4_1 {
    static const u32 TO = brasa::Q4_1;
    static DEVICE void write(const RepackParams&, const SubWrite& w) {
        write_nibbles(w, [&](u32 half, u32 k) -> u32 {
            const u8* block = w.block(half, k, 32, 20);
            return block == nullptr ? 0 : nibble(block + 4, k % 32);
        });
    }
    static DEVICE float bound(const RepackParams&, const SubWrite& w) {
        return write_lines(w, w.sub + 512, 15.0f, [&](u32 half, u32 k) -> ScaleOffset {
            const u8* block = w.block(half, k, 32, 20);
            return {half_at(block), half_at(block + 2)};
        });
    }
};

struct FromQ5_1 {
    static const u32 TO = brasa::MLX8;
    static DEVICE void write(const RepackParams&, const SubWrite& w) {
        write_bytes(w, [&](u32 half, u32 k) -> u32 {
            const u8* block = w.block(half, k, 32, 24);
            return block == nullptr ? 0 : nibble(block + 8, k % 32) | bit(block + 4, k % 32) << 4;
        });
    }
    static DEVICE float bound(const RepackParams&, const SubWrite& w) {
        return write_lines(w, w.sub + 1024, 31.0f, [&](u32 half, u32 k) -> ScaleOffset {
            const u8* block = w.block(half, k, 32, 24);
            return {half_at(block), half_at(block + 2)};
        });
    }
};

// MLX's codes of up to four bits, and of more; the host chose a divisor by which scales and offsets become numbers of f16.
template <u32 FORMAT>
struct FromMlx {
    static const u32 TO = FORMAT;
    static DEVICE void write(const RepackParams& p, const SubWrite& w) {
        auto code = [&](u32 half, u32 k) -> u32 { return w.has(half, k) ? Mlx::code(w.rows[half], p.bits, k) : 0; };
        if (FORMAT == brasa::Q4_1) {
            write_nibbles(w, code);
        } else {
            write_bytes(w, code);
        }
    }
    static DEVICE float bound(const RepackParams& p, const SubWrite& w) {
        float reach = (float)((1u << p.bits) - 1);
        return write_lines(w, w.sub + (FORMAT == brasa::Q4_1 ? 512 : 1024), reach, [&](u32 half, u32 k) -> ScaleOffset {
            u64 group = (u64)w.numbers[half] * p.groups + k / p.group_size;
            float scale = Mlx::stored_float(p.scales, p.scale_format, group), bias = Mlx::stored_float(p.biases, p.scale_format, group);
            return {scale / p.divisor, bias / p.divisor};
        });
    }
};

// Scales and minima of Q4_K and Q5_K: HDM and S8M8.
DEVICE float write_super_scales(const SubWrite& w, u8* to, u32 bytes, float reach) {
    float largest = 0.0f;
    for (u32 half = 0; half < 2 && w.t == 0; ++half) {
        const u8* block = w.block(half, w.first, 256, bytes);
        write_scales_of_scales(w, half, block, 0);
        for (u32 i = 0; i < 2; ++i) {
            u32 scale = 0, min = 0;
            if (block != nullptr) {
                scale_and_min(block + 4, w.in_unit * 2 + i, scale, min);
                largest = fmaxf(largest, fabsf(half_at(block)) * (float)scale * reach + fabsf(half_at(block + 2)) * (float)min);
            }
            u8* at = to + w.g * 8 + half * 2 + i;
            at[0] = (u8)scale;
            at[4] = (u8)min;
        }
    }
    return largest;
}

struct FromQ4_K {
    static const u32 TO = brasa::Q4_K;
    static DEVICE void write(const RepackParams&, const SubWrite& w) {
        write_nibbles(w, [&](u32 half, u32 k) -> u32 {
            const u8* block = w.block(half, k, 256, 144);
            return block == nullptr ? 0 : super_nibble(block + 16, k % 256);
        });
    }
    static DEVICE float bound(const RepackParams&, const SubWrite& w) { return write_super_scales(w, w.sub + 512, 144, 15.0f); }
};

struct FromQ5_K {
    static const u32 TO = brasa::Q5_K;
    static DEVICE void write(const RepackParams&, const SubWrite& w) {
        auto code = [&](u32 half, u32 k) -> u32 {
            const u8* block = w.block(half, k, 256, 176);
            u32 e = k % 256;
            return block == nullptr ? 0 : super_nibble(block + 48, e) | (block[16 + e % 32] >> (e / 32) & 1) << 4;
        };
        write_nibbles(w, code);
        write_ones(w, w.sub + 512, 4, code);
    }
    static DEVICE float bound(const RepackParams&, const SubWrite& w) { return write_super_scales(w, w.sub + 640, 176, 31.0f); }
};

struct FromQ6_K {
    static const u32 TO = brasa::Q6_K;
    static DEVICE void write(const RepackParams&, const SubWrite& w) {
        auto code = [&](u32 half, u32 k) -> u32 {
            const u8* b = w.block(half, k, 256, 210);
            if (b == nullptr) {
                return 32;
            }
            u32 e = k % 256, c = e / 128, r = e % 128;
            u32 low = b[64 * c + r % 64] >> (r / 64 * 4) & 15, high = b[128 + 32 * c + r % 32] >> (r / 32 * 2) & 3;
            return low | high << 4;
        };
        write_nibbles(w, code);
        write_twos(w, w.sub + 512, 4, code);
    }
    static DEVICE float bound(const RepackParams&, const SubWrite& w) {
        float largest = 0.0f;
        for (u32 half = 0; half < 2 && w.t == 0; ++half) {
            const u8* block = w.block(half, w.first, 256, 210);
            write_scale_of_scales(w, half, block, 208);
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

struct FromQ3_K {
    static const u32 TO = brasa::Q3_K;
    static DEVICE void write(const RepackParams&, const SubWrite& w) {
        auto code = [&](u32 half, u32 k) -> u32 {
            const u8* b = w.block(half, k, 256, 110);
            u32 e = k % 256;
            return b == nullptr ? 4 : two_bits(b + 32, e) | (b[e % 32] >> (e / 32) & 1) << 2;
        };
        write_twos(w, w.sub, 1, code);
        write_ones(w, w.sub + 256, 0, code);
    }
    static DEVICE float bound(const RepackParams&, const SubWrite& w) {
        float largest = 0.0f;
        for (u32 half = 0; half < 2 && w.t == 0; ++half) {
            const u8* block = w.block(half, w.first, 256, 110);
            write_scale_of_scales(w, half, block, 108);
            for (u32 i = 0; i < 4; ++i) {
                u32 scale = block == nullptr ? 32 : scale_of_q3(block + 96, w.in_unit * 4 + i);
                w.sub[384 + w.g * 8 + half * 4 + i] = (u8)(scale + 128 - 32);
                if (block != nullptr) {
                    largest = fmaxf(largest, fabsf(half_at(block + 108) * (float)((int)scale - 32)) * 4.0f);
                }
            }
        }
        return largest;
    }
};

struct FromQ2_K {
    static const u32 TO = brasa::Q2_K;
    static DEVICE void write(const RepackParams&, const SubWrite& w) {
        write_twos(w, w.sub, 0, [&](u32 half, u32 k) -> u32 {
            const u8* block = w.block(half, k, 256, 84);
            return block == nullptr ? 0 : two_bits(block + 16, k % 256);
        });
    }
    static DEVICE float bound(const RepackParams&, const SubWrite& w) {
        float largest = 0.0f;
        for (u32 half = 0; half < 2 && w.t == 0; ++half) {
            const u8* block = w.block(half, w.first, 256, 84);
            write_scales_of_scales(w, half, block, 80);
            for (u32 i = 0; i < 4; ++i) {
                u8 both = block == nullptr ? 0 : block[w.in_unit * 4 + i];
                w.sub[256 + w.g * 8 + half * 4 + i] = both;
                if (block != nullptr) {
                    float reach = fabsf(half_at(block + 80)) * (float)(both & 15) * 3.0f;
                    largest = fmaxf(largest, reach + fabsf(half_at(block + 82)) * (float)(both >> 4));
                }
            }
        }
        return largest;
    }
};

struct FromIQ4_XS {
    static const u32 TO = brasa::IQ4_XS;
    static DEVICE void write(const RepackParams&, const SubWrite& w) {
        write_nibbles(w, [&](u32 half, u32 k) -> u32 {
            const u8* block = w.block(half, k, 256, 136);
            u32 e = k % 256;
            return block == nullptr ? 0 : nibble(block + 8 + e / 32 * 16, e % 32);
        });
    }
    static DEVICE float bound(const RepackParams&, const SubWrite& w) {
        float largest = 0.0f;
        for (u32 half = 0; half < 2 && w.t == 0; ++half) {
            const u8* block = w.block(half, w.first, 256, 136);
            write_scale_of_scales(w, half, block, 0);
            for (u32 i = 0; i < 2; ++i) {
                u32 scale = block == nullptr ? 32 : scale_of_iq4(block, w.in_unit * 2 + i);
                w.sub[512 + w.g * 4 + half * 2 + i] = (u8)(scale + 128 - 32);
                if (block != nullptr) {
                    largest = fmaxf(largest, fabsf(half_at(block) * (float)((int)scale - 32)) * 127.0f);
                }
            }
        }
        return largest;
    }
};

template <class From>
DEVICE void repack(const RepackParams& p) {
    u64 i = thread_number();
    u32 warps = p.tiles * p.subs, number = (u32)(i / 32);
    if (number >= warps) {
        return;
    }
    const brasa::Geometry G = brasa::geometry(From::TO);
    u32 tile = number / p.subs, sub = number % p.subs, g = lane() / 4, row = tile * p.tile_rows + g;
    SubWrite w;
    w.unit = p.to + tile * brasa::tile_bytes(From::TO, p.subs) + (u64)(sub / G.unit_subs) * brasa::unit_bytes(From::TO);
    w.in_unit = sub % G.unit_subs;
    w.sub = w.unit + G.header_bytes + w.in_unit * G.sub_bytes;
    w.numbers[0] = row;
    w.numbers[1] = p.upper_start + row;
    w.rows[0] = row < p.lower_rows ? p.source + (u64)w.numbers[0] * p.row_bytes : nullptr;
    w.rows[1] = row < p.upper_rows ? p.source + (u64)w.numbers[1] * p.row_bytes : nullptr;
    w.first = sub * 64;
    w.inputs = p.inputs;
    w.g = g;
    w.t = lane() % 4;
    w.lane = lane();
    From::write(p, w);
    float largest = warp_max(From::bound(p, w));
    if (lane() == 0 && largest > __uint_as_float(*p.largest)) {
        atomicMax(p.largest, __float_as_uint(largest));
    }
}

#define BRASA_REPACK(name, From) \
    KERNEL(repack_##name, RepackParams) { repack<From>(p); }
BRASA_REPACK(f16, FromF16)
BRASA_REPACK(bf16, FromBF16)
BRASA_REPACK(q8_0, FromQ8_0)
BRASA_REPACK(q5_0, FromQ5_0)
BRASA_REPACK(iq4_nl, FromIQ4_NL)
BRASA_REPACK(q4_0, FromQ4_0)
BRASA_REPACK(q4_1, FromQ4_1)
BRASA_REPACK(q5_1, FromQ5_1)
BRASA_REPACK(q4_k, FromQ4_K)
BRASA_REPACK(q5_k, FromQ5_K)
BRASA_REPACK(q6_k, FromQ6_K)
BRASA_REPACK(q3_k, FromQ3_K)
BRASA_REPACK(q2_k, FromQ2_K)
BRASA_REPACK(iq4_xs, FromIQ4_XS)
BRASA_REPACK(mlx_q4_1, FromMlx<brasa::Q4_1>)
BRASA_REPACK(mlx_mlx8, FromMlx<brasa::MLX8>)

KERNEL(row_norms, RowNormsParams) {
    const u32 tile = blockIdx.x;
    for (u32 row = warp(); row < 16; row += 8) {
        float squares = 0.0f;
        for (u32 k = lane(); k < p.subs * 64; k += 32) {
            const float w = brasa::weight_at(p.format, p.source, p.subs, tile * 16 + row, k) * p.factor;
            squares = fmaf(w, w, squares);
        }
        squares = warp_sum(squares);
        if (lane() == 0) {
            atomicMax(p.largest, __float_as_uint(squares));
        }
    }
}

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
