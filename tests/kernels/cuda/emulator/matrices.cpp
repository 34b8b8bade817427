// Tensor cores: mma and wgmma, and the instructions that bring 8 x 8 matrices to the places that they want.
//
// In a tile of 16 rows a lane has rows lane / 4 and 8 more, and of each the pairs of columns (bytes: fours) lane % 4 and 4 more.

#include "actions.h"

namespace {

template <typename TYPE> double element(u32 pair, int which) { return widened<TYPE>((u16)(pair >> 16 * which)); }

// The left matrix of 16 rows and 16 columns, from four registers of each lane.
template <typename TYPE> void read_left(Warp& warp, const Operand* registers, double (&a)[16][16]) {
    for (int k = 0; k < 4; k++)
        for (int lane = 0; lane < 32; lane++) {
            const u32 pair = warp.lanes(registers[k]).get<u32>(lane);
            for (int j = 0; j < 2; j++) a[lane / 4 + k % 2 * 8][lane % 4 * 2 + k / 2 * 8 + j] = element<TYPE>(pair, j);
        }
}

// Four sums of each lane: two neighbouring columns of two rows.
template <typename T, typename F> void add_to_sums(Warp& warp, const Operand* to, const Operand* from, F sum_of) {
    for (int k = 0; k < 4; k++)
        for (int lane = 0; lane < 32; lane++) {
            const T before = warp.lanes(from[k]).get<T>(lane);
            warp.lanes(to[k]).set<T>(lane, (T)(before + sum_of(lane / 4 + k / 2 * 8, lane % 4 * 2 + k % 2)));
        }
}

template <typename TYPE> void multiply(Warp& warp, I i, u32) {  // m16n8k16
    const Operand* const operands = i.operands.data();           // 4 sums, 4 registers of a, 2 of b, 4 sums
    double a[16][16], b[8][16];
    read_left<TYPE>(warp, operands + 4, a);
    for (int k = 0; k < 2; k++)
        for (int lane = 0; lane < 32; lane++)
            for (int j = 0; j < 2; j++)
                b[lane / 4][lane % 4 * 2 + k * 8 + j] = element<TYPE>(warp.lanes(operands[8 + k]).get<u32>(lane), j);
    add_to_sums<float>(warp, operands, operands + 10, [&](int row, int column) {
        double sum = 0;
        for (int k = 0; k < 16; k++) sum += a[row][k] * b[column][k];
        return sum;
    });
}

template <typename A> void multiply_bytes(Warp& warp, I i, u32) {  // m16n8k32
    const Operand* const operands = i.operands.data();
    s32 a[16][32], b[8][32];
    for (int lane = 0; lane < 32; lane++)
        for (int j = 0; j < 4; j++) {
            for (int k = 0; k < 4; k++)
                a[lane / 4 + k % 2 * 8][lane % 4 * 4 + k / 2 * 16 + j] = (A)(warp.lanes(operands[4 + k]).get<u32>(lane) >> 8 * j);
            for (int k = 0; k < 2; k++)
                b[lane / 4][lane % 4 * 4 + k * 16 + j] = (int8_t)(warp.lanes(operands[8 + k]).get<u32>(lane) >> 8 * j);
        }
    add_to_sums<s32>(warp, operands, operands + 10, [&](int row, int column) {
        s32 sum = 0;
        for (int k = 0; k < 32; k++) sum += a[row][k] * b[column][k];
        return sum;
    });
}

// A matrix in shared memory, as a descriptor of wgmma tells. Its rows lie in eights.
struct SharedMatrix {
    Block& block;
    u64 first, next_numbers, next_eight;
    bool swizzled;

    SharedMatrix(Block& block, u64 bits)
        : block(block), first((bits & 0x3FFF) << 4), next_numbers((bits >> 16 & 0x3FFF) << 4), next_eight((bits >> 32 & 0x3FFF) << 4),
          swizzled(bits >> 62 == 1) {
        if (bits >> 62 > 1 || bits >> 49 & 7) throw Fault("the layout of a matrix in shared memory is not emulated");
    }

    u16 get(int row, int column) const {
        u64 at = first + row / 8 * next_eight;
        if (swizzled) {
            at += row % 8 * 128 + column * 2;
            at ^= (at >> 7 & 7) << 4;
        } else {
            at += column / 8 * next_numbers + row % 8 * 16 + column % 8 * 2;
        }
        u16 value;
        memcpy(&value, block.at(at, 2), 2);
        return value;
    }
};

// What a warp reads of the matrices in shared memory, the right one last. Of the left one's 64 rows each of four neighbouring
// warps multiplies 16.
std::vector<u16> numbers_of(Warp& warp, const std::vector<u64>& descriptors, u32 columns) {
    std::vector<u16> numbers;
    for (size_t which = 0; which < descriptors.size(); which++) {
        const bool right = which + 1 == descriptors.size();
        const SharedMatrix matrix(*warp.block, descriptors[which]);
        const int first = right ? 0 : warp.number % 4 * 16, count = right ? columns : 16;
        for (int row = first; row < first + count; row++)
            for (int k = 0; k < 16; k++) numbers.push_back(matrix.get(row, k));
    }
    return numbers;
}

// The sums are there at once, because the compiler's PTX moves them between registers before the wait.
template <typename TYPE> void multiply_tile(Warp& warp, I i, u32) {
    const Operand* const operands = i.operands.data();
    const u32 columns = i.count, sums = columns / 2;
    const bool left_in_registers = i.operands.size() == sums + 4 + 1 + 4;
    const u32 next = sums + (left_in_registers ? 4 : 1);
    const u32 adds = warp.lanes(operands[next + 1]).get<u32>(0);
    if (!adds || warp.lanes(operands[next + 2]).get<s32>(0) != 1 || warp.lanes(operands[next + 3]).get<s32>(0) != 1)
        throw Fault("wgmma is emulated only where it adds to its sums");
    for (size_t k = next + 4; k < i.operands.size(); k++)
        if (warp.lanes(operands[k]).get<u32>(0)) throw Fault("wgmma is not emulated for transposed matrices");
    Product product = {columns, warp.committed_products, {}, {}};
    for (u32 k = left_in_registers ? next : sums; k <= next; k++) product.descriptors.push_back(warp.lanes(operands[k]).get<u64>(0));
    product.numbers = numbers_of(warp, product.descriptors, columns);
    const u16* const right = &product.numbers[left_in_registers ? 0 : 16 * 16];
    double a[16][16];
    if (left_in_registers)
        read_left<TYPE>(warp, operands + sums, a);
    else
        for (int n = 0; n < 16 * 16; n++) a[n / 16][n % 16] = widened<TYPE>(product.numbers[n]);
    for (u32 n = 0; n < columns / 8; n++) {
        double b[8][16];
        for (int m = 0; m < 8 * 16; m++) b[m / 16][m % 16] = widened<TYPE>(right[n * 8 * 16 + m]);
        add_to_sums<float>(warp, operands + 4 * n, operands + 4 * n, [&](int row, int column) {
            double sum = 0;
            for (int k = 0; k < 16; k++) sum += a[row][k] * b[column][k];
            return sum;
        });
    }
    warp.products.push_back(std::move(product));
}
void commit_products(Warp& warp, I, u32) { warp.committed_products++; }
void wait_for_products(Warp& warp, I i, u32) {
    const u32 left = (u32)i.operands[0].value;
    size_t done = 0;
    for (; done < warp.products.size() && warp.products[done].group + left < warp.committed_products; done++) {
        const Product& product = warp.products[done];
        if (numbers_of(warp, product.descriptors, product.columns) != product.numbers)
            throw Fault("shared memory has changed before a wait for the products that read it");
    }
    warp.products.erase(warp.products.begin(), warp.products.begin() + done);
}
void nothing(Warp&, I, u32) {}

template <bool TRANSPOSED> void load_matrices(Warp& warp, I i, u32) {  // ldmatrix of four
    const Operand& address = i.operands[4];
    for (u32 number = 0; number < 4; number++) {
        u16 rows[8][8];
        for (int row = 0; row < 8; row++) {
            const u32 at = warp.lanes(address).get<u32>(number * 8 + row) + address.offset;
            if (at % 16) throw Fault("a row of a matrix is not at a multiple of 16 bytes");
            memcpy(rows[row], warp.block->at(at, 16), 16);
        }
        for (int lane = 0; lane < 32; lane++) {
            const int row = lane / 4, column = lane % 4 * 2;
            const u32 low = TRANSPOSED ? rows[column][row] : rows[row][column];
            const u32 high = TRANSPOSED ? rows[column + 1][row] : rows[row][column + 1];
            warp.lanes(i.operands[number]).set<u32>(lane, low | high << 16);
        }
    }
}

void transpose_matrix(Warp& warp, I i, u32) {  // movmatrix
    u16 rows[8][8];
    for (int lane = 0; lane < 32; lane++) {
        const u32 pair = warp.lanes(i.operands[1]).get<u32>(lane);
        for (int j = 0; j < 2; j++) rows[lane / 4][lane % 4 * 2 + j] = pair >> 16 * j;
    }
    for (int lane = 0; lane < 32; lane++)
        warp.lanes(i.operands[0]).set<u32>(lane, rows[lane % 4 * 2][lane / 4] | (u32)rows[lane % 4 * 2 + 1][lane / 4] << 16);
}

}  // namespace

const Actions matrices = {
    {"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", multiply<Bf16>},
    {"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", multiply<F16>},
    {"mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32", multiply_bytes<int8_t>},
    {"mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32", multiply_bytes<u8>},
    {"ldmatrix.sync.aligned.m8n8.x4.shared.b16", load_matrices<false>},
    {"ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16", load_matrices<true>},
    {"movmatrix.sync.aligned.m8n8.trans.b16", transpose_matrix},
    {"wgmma.fence.sync.aligned", nothing}, {"wgmma.commit_group.sync.aligned", commit_products},
    {"wgmma.wait_group.sync.aligned", wait_for_products},
};

// wgmma of any number of columns; false if the instruction is another.
bool find_product_of_tiles(Instruction& i, const std::vector<std::string>& words) {
    if (words.size() != 8 || words[0] != "wgmma" || words[1] != "mma_async" || words[4].rfind("m64n", 0) != 0) return false;
    if (words[5] != "f32" || words[6] != words[7] || (words[6] != "bf16" && words[6] != "f16")) return false;
    i.kind = Kind::CONVERGENT, i.count = std::stoul(words[4].substr(4));
    i.action = words[6] == "bf16" ? multiply_tile<Bf16> : multiply_tile<F16>;
    return true;
}
