// A pattern in which every 4-byte word depends on its place and on a seed, and its check.
typedef unsigned long long u64;

__device__ unsigned word_of(u64 at, u64 seed) {
    u64 x = (at + 1) * 0x9E3779B97F4A7C15ull ^ seed * 0xD1B54A32D192ED03ull;
    x = (x ^ x >> 32) * 0xD6E8FEB86659FD93ull;
    return (unsigned)(x >> 32);
}

// invert = 0xFFFFFFFF writes the complement: what a destination holds before a copy.
extern "C" __global__ void fill(u64 dst_at, u64 words, u64 seed, u64 invert) {
    const u64 stride = (u64)gridDim.x * blockDim.x;
    for (u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x; at < words; at += stride) {
        ((unsigned *)dst_at)[at] = word_of(at, seed) ^ (unsigned)invert;
    }
}

// result[0] counts wrong words, result[1] is the least wrong place (in words).
extern "C" __global__ void check(u64 buffer_at, u64 words, u64 seed, u64 result_at) {
    u64 *result = (u64 *)result_at;
    const u64 stride = (u64)gridDim.x * blockDim.x;
    u64 wrong = 0, first = ~0ull;
    for (u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x; at < words; at += stride) {
        if (((const unsigned *)buffer_at)[at] != word_of(at, seed)) {
            wrong += 1;
            first = at < first ? at : first;
        }
    }
    if (wrong) {
        atomicAdd(&result[0], wrong);
        atomicMin(&result[1], first);
    }
}

// The check for pieces that were gathered with a step: word w of piece p is from another place.
extern "C" __global__ void check_pieces(u64 buffer_at, u64 piece_words, u64 pieces, u64 step,
                                        u64 seed, u64 result_at) {
    u64 *result = (u64 *)result_at;
    const u64 words = piece_words * pieces;
    const u64 stride = (u64)gridDim.x * blockDim.x;
    for (u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x; at < words; at += stride) {
        const u64 from = at / piece_words * step % pieces * piece_words + at % piece_words;
        if (((const unsigned *)buffer_at)[at] != word_of(from, seed)) {
            atomicAdd(&result[0], 1ull);
            atomicMin(&result[1], at);
        }
    }
}

extern "C" __global__ void clear_result(u64 result_at) {
    ((u64 *)result_at)[0] = 0;
    ((u64 *)result_at)[1] = ~0ull;
}
