// All-reduce of bfloat16 over peer memory that every rank has mapped, without NCCL (L4).
//
// one_shot_push  every rank writes its data with flags into its peers, who sum as it arrives
// one_shot       a barrier, then every rank reads all data from its peers and sums it
// two_shot       a barrier, every rank sums its share, a barrier, every rank collects the shares
//
// RANKS is the number of ranks, SLOTS the packets of a block and source in one_shot_push. Each
// block has its own counter of calls and its own flags, so that blocks never wait for each other
// and calls of different sizes may follow one another. Ranks sum in the same order: the results
// are equal bit by bit.
//
// Empty unless RANKS is defined: it may lie in one source with kernels that need no sizes.

#ifdef RANKS

struct Peers { unsigned long long at[RANKS]; };

// Some seconds of polling: a lost flag is then an error and not a hung GPU.
#define PATIENCE (1u << 24)

// Whether to wait no longer; once one thread gave up, the others do so soon.
__device__ bool gave_up(unsigned tries, unsigned call, unsigned* lost) {
    if ((tries & 0xffffu) != 0xffffu) return false;
    if (*(volatile unsigned*)lost != 0) return true;
    if (tries < PATIENCE) return false;
    *lost = call;
    return true;
}

__device__ float low(unsigned pair) { return __uint_as_float(pair << 16); }
__device__ float high(unsigned pair) { return __uint_as_float(pair & 0xffff0000u); }

// Round to nearest even, as the hardware's conversion; by hand, as not all chips have one.
__device__ unsigned rounded(float value) {
    unsigned bits = __float_as_uint(value);
    return (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
}
__device__ unsigned packed(float first, float second) {
    return rounded(first) | (rounded(second) << 16);
}

// A launch may be put on the multiprocessors while the last call runs; it then does nothing until
// that has ended and its writes are seen ...
__device__ void wait_for_last() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// ... and lets the next one do the same.
__device__ void let_next_begin() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ void store_packet(void* to, uint2 data, unsigned flag) {
    // Each half of 8 bytes carries its own flag: no wider store needs to be whole.
    asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %2};"
                 :: "l"(to), "r"(data.x), "r"(flag), "r"(data.y) : "memory");
}
__device__ uint4 load_packet(const void* from) {
    uint4 packet;
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(packet.x), "=r"(packet.y), "=r"(packet.z), "=r"(packet.w)
                 : "l"(from) : "memory");
    return packet;
}

// Packets are 8 bytes of data. Arrivals are kept twice, used in turns: a peer that is one call
// ahead writes to the other half, and it cannot be two ahead, since it waits for our data.
extern "C" __global__ void one_shot_push(const uint2* source, uint2* result, Peers inbox,
                                         unsigned rank, unsigned packets, unsigned* calls,
                                         unsigned* lost) {
    wait_for_last();
    let_next_begin();
    unsigned call = *(volatile unsigned*)&calls[blockIdx.x] + 1;
    unsigned long long half = (blockIdx.x * 2ull + (call & 1)) * RANKS;
    unsigned slot = threadIdx.x;
    for (unsigned at = blockIdx.x * blockDim.x + threadIdx.x; at < packets;
         at += gridDim.x * blockDim.x, slot += blockDim.x) {
        uint2 mine = source[at];
        unsigned long long to = ((half + rank) * SLOTS + slot) * 16;
#pragma unroll
        for (unsigned step = 1; step < RANKS; ++step) {
            unsigned peer = (rank + step) % RANKS;
            store_packet((void*)(inbox.at[peer] + to), mine, call);
        }
    }
    slot = threadIdx.x;
    for (unsigned at = blockIdx.x * blockDim.x + threadIdx.x; at < packets;
         at += gridDim.x * blockDim.x, slot += blockDim.x) {
        uint2 mine = source[at];
        float sum[4] = {0, 0, 0, 0};
#pragma unroll
        for (unsigned from = 0; from < RANKS; ++from) {
            uint2 data = mine;
            if (from != rank) {
                const void* here = (const void*)(inbox.at[rank] +
                                                 ((half + from) * SLOTS + slot) * 16);
                uint4 packet = load_packet(here);
                for (unsigned tries = 0; packet.y != call || packet.w != call; ++tries) {
                    if (gave_up(tries, call, lost)) break;
                    packet = load_packet(here);
                }
                data = make_uint2(packet.x, packet.z);
            }
            sum[0] += low(data.x); sum[1] += high(data.x);
            sum[2] += low(data.y); sum[3] += high(data.y);
        }
        result[at] = make_uint2(packed(sum[0], sum[1]), packed(sum[2], sum[3]));
    }
    __syncthreads();
    if (threadIdx.x == 0) calls[blockIdx.x] = call;
}

// Tells the same block of every peer that this one has come to `call`, and waits for all of them.
__device__ void meet(const Peers& flags, unsigned rank, unsigned where, unsigned call,
                     unsigned* lost) {
    __syncthreads();
    if (threadIdx.x < RANKS) {
        unsigned long long line = ((blockIdx.x * 2ull + where) * RANKS) * 4;
        unsigned* theirs = (unsigned*)(flags.at[threadIdx.x] + line + rank * 4);
        unsigned* ours = (unsigned*)(flags.at[rank] + line + threadIdx.x * 4);
        asm volatile("fence.acq_rel.sys; st.release.sys.global.u32 [%0], %1;"
                     :: "l"(theirs), "r"(call) : "memory");
        unsigned seen;
        unsigned tries = 0;
        do {
            asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(seen) : "l"(ours) : "memory");
            if (gave_up(tries++, call, lost)) break;
        } while ((int)(seen - call) < 0);  // a peer may be at the next call already
    }
    __syncthreads();
}

__device__ void add(float* sum, uint4 data) {
    sum[0] += low(data.x); sum[1] += high(data.x);
    sum[2] += low(data.y); sum[3] += high(data.y);
    sum[4] += low(data.z); sum[5] += high(data.z);
    sum[6] += low(data.w); sum[7] += high(data.w);
}

__device__ uint4 total(const Peers& sources, unsigned long long at) {
    uint4 data[RANKS];
#pragma unroll
    for (unsigned from = 0; from < RANKS; ++from)  // all loads are under way before the first sum
        data[from] = ((const uint4*)sources.at[from])[at];
    float sum[8] = {0, 0, 0, 0, 0, 0, 0, 0};
#pragma unroll
    for (unsigned from = 0; from < RANKS; ++from) add(sum, data[from]);
    return make_uint4(packed(sum[0], sum[1]), packed(sum[2], sum[3]),
                      packed(sum[4], sum[5]), packed(sum[6], sum[7]));
}

// A source may be written again by the next kernel of its rank only if that kernel meets first.
extern "C" __global__ void one_shot(Peers sources, uint4* result, Peers flags, unsigned rank,
                                    unsigned vectors, unsigned* calls, unsigned* lost) {
    wait_for_last();
    let_next_begin();
    unsigned call = *(volatile unsigned*)&calls[blockIdx.x] + 1;
    meet(flags, rank, 0, call, lost);
    unsigned step = gridDim.x * blockDim.x;
#pragma unroll 4
    for (unsigned at = blockIdx.x * blockDim.x + threadIdx.x; at < vectors; at += step)
        result[at] = total(sources, at);
    if (threadIdx.x == 0) calls[blockIdx.x] = call;
}

// Thread and block of a share's element are the same in both halves on all ranks: a block need
// only meet its namesakes.
extern "C" __global__ void two_shot(Peers sources, uint4* result, Peers shares, Peers flags,
                                    unsigned rank, unsigned vectors, unsigned* calls,
                                    unsigned* lost) {
    wait_for_last();
    let_next_begin();
    unsigned call = *(volatile unsigned*)&calls[blockIdx.x] + 1;
    meet(flags, rank, 0, call, lost);
    unsigned share = (vectors + RANKS - 1) / RANKS;
    unsigned step = gridDim.x * blockDim.x;
    unsigned first = rank * share;
    uint4* own = (uint4*)shares.at[rank];
#pragma unroll 4
    for (unsigned at = blockIdx.x * blockDim.x + threadIdx.x; at < share; at += step)
        if (first + at < vectors) own[at] = total(sources, first + at);
    meet(flags, rank, 1, call, lost);
#pragma unroll 4
    for (unsigned at = blockIdx.x * blockDim.x + threadIdx.x; at < share; at += step) {
#pragma unroll
        for (unsigned turn = 0; turn < RANKS; ++turn) {
            unsigned owner = (rank + turn) % RANKS;
            unsigned long long place = (unsigned long long)owner * share + at;
            if (place < vectors) result[place] = ((const uint4*)shares.at[owner])[at];
        }
    }
    if (threadIdx.x == 0) calls[blockIdx.x] = call;
}

#endif
