// Fills a buffer with the pattern of one rank, and counts what is wrong in a result (L6).
// The arithmetic is that of collective_layout.py; ELEMENT_BYTES is 2 (bfloat16) or 4 (float).
//
// Empty unless ELEMENT_BYTES is defined: it may lie in one source with kernels that need no sizes.

#ifdef ELEMENT_BYTES

__device__ unsigned element(unsigned seed, unsigned rank, unsigned index, unsigned below) {
    unsigned mixed = (index * 2654435761u) ^ ((rank + 1) * 2246822519u) ^ (seed * 3266489917u);
    mixed ^= mixed >> 15;
    mixed *= 2246822519u;
    mixed ^= mixed >> 13;
    return mixed % below;
}

#if ELEMENT_BYTES == 2
typedef unsigned short Element;
// Whole numbers with at most 8 significant bits lose nothing in the lower half of a float.
__device__ Element encode(float value) { return __float_as_uint(value) >> 16; }
#else
typedef unsigned Element;
__device__ Element encode(float value) { return __float_as_uint(value); }
#endif

extern "C" __global__ void fill(Element* buffer, unsigned long long count, unsigned seed,
                                unsigned rank, unsigned below) {
    unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
    for (unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
         i < count; i += step)
        buffer[i] = encode((float)element(seed, rank, (unsigned)i, below));
}

// result[0] counts wrong elements, result[1] is the index of the first (its start: all ones).
extern "C" __global__ void check(const Element* buffer, unsigned long long count, unsigned seed,
                                 unsigned below, unsigned source, unsigned summed,
                                 unsigned long long chunk, unsigned long long index,
                                 unsigned doublings, unsigned long long* result) {
    unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
    for (unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
         i < count; i += step) {
        unsigned from = source + (chunk ? (unsigned)(i / chunk) : 0);
        unsigned at = (unsigned)(index + (chunk ? i % chunk : i));
        unsigned total = 0;
        for (unsigned each = 0; each < summed; ++each)
            total += element(seed, from + each, at, below);
        if (buffer[i] != encode(ldexpf((float)total, (int)doublings))) {
            atomicAdd(&result[0], 1ull);
            atomicMin(&result[1], i);
        }
    }
}

#endif
