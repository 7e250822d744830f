// Copies by loads and stores of a multiprocessor: 16 bytes a thread and step, UNROLL in flight.
typedef unsigned long long u64;

#define UNROLL 8

// Bytes that are no multiple of 16 are left to the first threads of the first block.
extern "C" __global__ void copy_sm(u64 dst_at, u64 src_at, u64 bytes) {
    uint4 *dst = (uint4 *)dst_at;
    const uint4 *src = (const uint4 *)src_at;
    const u64 wide = bytes / 16;
    const u64 stride = (u64)gridDim.x * blockDim.x;
    u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    for (; at + (UNROLL - 1) * stride < wide; at += UNROLL * stride) {
        uint4 held[UNROLL];
#pragma unroll
        for (int i = 0; i < UNROLL; ++i) held[i] = src[at + i * stride];
#pragma unroll
        for (int i = 0; i < UNROLL; ++i) dst[at + i * stride] = held[i];
    }
    for (; at < wide; at += stride) dst[at] = src[at];
    if (blockIdx.x == 0 && threadIdx.x < bytes % 16) {
        ((char *)dst_at)[wide * 16 + threadIdx.x] = ((const char *)src_at)[wide * 16 + threadIdx.x];
    }
}

// Pieces of one size, each from and to its own place: block x takes pieces x, x + gridDim.x, ...
// Piece p lies at (p * step) % pieces on the source and at p on the destination: step 1 is
// contiguous, an odd step of many pieces is scattered.
extern "C" __global__ void copy_pieces(u64 dst_at, u64 src_at, u64 piece_bytes, u64 pieces,
                                       u64 step) {
    const u64 wide = piece_bytes / 16;
    for (u64 piece = blockIdx.x; piece < pieces; piece += gridDim.x) {
        uint4 *dst = (uint4 *)(dst_at + piece * piece_bytes);
        const uint4 *src = (const uint4 *)(src_at + piece * step % pieces * piece_bytes);
        u64 at = threadIdx.x;
        for (; at + 3 * blockDim.x < wide; at += 4 * blockDim.x) {
            uint4 a = src[at], b = src[at + blockDim.x];
            uint4 c = src[at + 2 * blockDim.x], d = src[at + 3 * blockDim.x];
            dst[at] = a;
            dst[at + blockDim.x] = b;
            dst[at + 2 * blockDim.x] = c;
            dst[at + 3 * blockDim.x] = d;
        }
        for (; at < wide; at += blockDim.x) dst[at] = src[at];
    }
}
