// Rows of a table by their numbers, and bf16 as float32.

#include "calls.h"
#include "vectors.h"

namespace {

struct Gather {            // `Gather` of rows.py
  Progress progress;       // units of work: rows
  const char* table;          // [any, row_bytes]
  const int64_t* numbers;     // [rows]
  char* to;                   // [rows, row_bytes]
  int64_t rows, row_bytes;
};

struct Widen {        // `Widen` of rows.py
  Progress progress;  // units of work: values
  const void* from;           // bf16
  void* to;                   // float32
  int64_t count;
};

constexpr int64_t PIECE = 4096;

}  // namespace

extern "C" int64_t gather_part(Gather* g, int) {
  int64_t finished = 0;
  for (int64_t row; (row = g->progress.take(1, g->rows)) >= 0; finished++)
    memcpy(g->to + row * g->row_bytes, g->table + g->numbers[row] * g->row_bytes, g->row_bytes);
  return finished;
}

extern "C" int64_t widen_part(Widen* w, int) {
  int64_t finished = 0;
  for (int64_t at; (at = w->progress.take(PIECE, w->count)) >= 0;) {
    const int64_t end = std::min(at + PIECE, w->count);
    for (int64_t i = at; i < end; i += LANES)
      write(read(w->from, i, w->count - i, true), w->to, i, w->count - i, false);
    finished += end - at;
  }
  return finished;
}
