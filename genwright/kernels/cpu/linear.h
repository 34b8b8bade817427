// What the kernels of linear layers share: the arguments of a call, the norm before the product, the epilogue after it,
// and how the rows of W are divided among the threads.

#pragma once

#include "calls.h"
#include "vectors.h"

#include <cmath>
#include <vector>

namespace {

struct Epilogue {           // `Epilogue` of epilogue.py; tensors have x's type and may be null
  const void *norm, *bias;  // [inputs], [outputs]
  const void* residual;     // like y
  float eps;                // of the norm
  int32_t gate;             // y is silu(first half) * second half
  int32_t bf16;             // x is bf16, not float32
};

template <class W>
struct Product {  // `Product` of epilogue.py; a unit of work is a row of y
  Progress progress;
  W w;  // has outputs, inputs and row_bytes
  Epilogue epilogue;
  const void* x;   // [tokens, inputs]
  void* y;         // [tokens, rows]
  int64_t tokens;
  int64_t stride;  // of y and the residual

  int64_t rows() const { return w.outputs / (epilogue.gate ? 2 : 1); }
};

constexpr int CHUNK = 256 << 10;     // bytes of W that a thread takes at a time; they stay in its cache for the next tokens
constexpr int LEAST = 64 << 10;      // the same of one token, for the last parts
constexpr int CHUNK_MULTIPLE = 16;   // of rows

// Rows that a thread takes at a time: the same number of chunks for each thread, of about CHUNK bytes each. Of one token,
// the fewest that it takes.
template <class W>
int64_t chunk_of(const Product<W>& p, int threads) {
  const int64_t bytes = p.w.outputs * p.w.row_bytes, rows = p.rows();
  const int64_t chunks = threads * std::max<int64_t>(bytes / (int64_t(CHUNK) * threads), 1);
  const int64_t parts = p.tokens == 1 ? bytes / LEAST + 1 : chunks;
  const int64_t chunk = ((rows + parts - 1) / parts + CHUNK_MULTIPLE - 1) / CHUNK_MULTIPLE * CHUNK_MULTIPLE;
  return std::max<int64_t>(chunk, 1);
}

Vector silu(Vector v) {
  const Vector e = exponential(v > 0 ? -v : v);
  return v * (v > 0 ? Vector{} + 1 : e) / (1 + e);
}

// Write x of some tokens, normalised if there is a norm, in rows of `stride` values: float32, or bf16 if `pairs`.
template <class W>
void prepare(const Product<W>& p, int64_t first, int64_t end, int64_t stride, bool pairs, void* to) {
  const Epilogue& e = p.epilogue;
  const int64_t inputs = p.w.inputs;
  for (int64_t t = first; t < end; t++) {
    Vector squares = {};
    for (int64_t i = 0; e.norm && i < inputs; i += LANES) {
      const Vector v = read(p.x, t * inputs + i, inputs - i, e.bf16);
      squares = multiply_add(v, v, squares);
    }
    float sum = 0;
    for (int i = 0; i < LANES; i++) sum += squares[i];
    const float factor = 1 / std::sqrt(sum / inputs + e.eps);
    for (int64_t i = 0; i < inputs; i += LANES) {
      Vector v = read(p.x, t * inputs + i, inputs - i, e.bf16);
      if (e.norm) {
        const Vector weight = read(e.norm, i, inputs - i, e.bf16);
        v = rounded(rounded(v * factor, e.bf16) * weight, e.bf16);
      }
      write(v, to, (t - first) * stride + i, inputs - i, pairs);
    }
  }
}

// Apply the epilogue to the products of rows `first` to `end`, and write them to y. sums [tokens, 1 or 2, stride]: with a
// gate, the products of both halves.
template <class W>
void finish(const Product<W>& p, int64_t first, int64_t end, const float* sums, int64_t stride) {
  const Epilogue& e = p.epilogue;
  const int64_t rows = p.rows(), halves = e.gate ? 2 : 1;
  const auto value = [&](int64_t t, int64_t half, int64_t row, int64_t count) {
    const Vector sum = read(sums, (t * halves + half) * stride + row - first, count, false);
    return rounded(e.bias ? sum + read(e.bias, half * rows + row, count, e.bf16) : sum, e.bf16);
  };
  for (int64_t t = 0; t < p.tokens; t++)
    for (int64_t row = first; row < end; row += LANES) {
      const int64_t count = end - row, at = t * p.stride + row;
      Vector v = value(t, 0, row, count);
      if (e.gate) v = rounded(rounded(silu(v), e.bf16) * value(t, 1, row, count), e.bf16);
      if (e.residual) v = rounded(read(e.residual, at, count, e.bf16) + v, e.bf16);
      write(v, p.y, at, count, e.bf16);
    }
}

// Take chunks of rows until none is left, and return how many rows that were. `prepare()` is called before the first of
// them; `compute(row, end, sums, stride)` then writes the products of some rows of W with all tokens: sums[t * stride].
template <class W, class Prepare, class Compute>
int64_t by_chunks(Product<W>& p, int threads, Prepare prepare, Compute compute) {
  const int64_t rows = p.rows(), chunk = chunk_of(p, threads), halves = p.epilogue.gate ? 2 : 1;
  thread_local std::vector<float> sums;
  const auto take = [&]() -> Range {
    if (p.tokens == 1) return p.progress.take_part(threads, chunk, rows);
    const int64_t first = p.progress.take(chunk, rows);
    return {first, std::min(first + chunk, rows)};
  };
  int64_t finished = 0;
  for (Range taken; (taken = take()).first >= 0;) {
    const auto [first, end] = taken;
    const int64_t count = end - first;
    if (finished == 0) prepare();
    sums.resize(std::max<size_t>(sums.size(), p.tokens * halves * count));
    for (int64_t half = 0; half < halves; half++)
      compute(half * rows + first, half * rows + end, sums.data() + half * count, halves * count);
    finish(p, first, end, sums.data(), count);
    finished += count;
  }
  return finished;
}

}  // namespace
