// Barriers in shared memory (mbarrier).

struct Barrier {  // passed in turns, each when all have arrived, by any number of waiting threads
    unsigned long state;

    __device__ __forceinline__ void initialize(int arrivals) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_place(this)), "r"(arrivals) : "memory");
    }

    __device__ __forceinline__ void arrive() {
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_place(this)) : "memory");
    }

    // A turn is passed only when so many bytes have been copied, too.
    __device__ __forceinline__ void arrive_and_expect(u32 bytes) {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_place(this)), "r"(bytes) : "memory");
    }

    __device__ __forceinline__ void wait(u32 turn) {
        asm volatile("{.reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra again;}" ::"r"(
                         shared_place(this)),
                     "r"(turn & 1)
                     : "memory");
    }
};
