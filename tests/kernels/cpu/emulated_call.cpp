// emulated_call LIBRARY FUNCTION FILE: call a kernel's function once, on one thread.
//
// FILE holds the arguments and the memory that they point to: int64 size, bytes; then for each piece of memory int64
// offset of its pointer in the arguments, int64 size, bytes. The pieces are written back after the call.

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <dlfcn.h>
#include <vector>

using Bytes = std::vector<char>;

extern "C" void GOMP_parallel(void (*function)(void*), void* data, unsigned, unsigned) { function(data); }

static bool number(FILE* file, int64_t& value) { return fread(&value, sizeof value, 1, file) == 1; }

static Bytes bytes(FILE* file) {
  int64_t size = 0;
  number(file, size);
  Bytes found(size);
  return fread(found.data(), 1, size, file) == size_t(size) ? found : Bytes();
}

int main(int, char** argv) {
  void* library = dlopen(argv[1], RTLD_NOW);
  if (!library) return puts(dlerror()), 1;
  auto function = (int64_t(*)(void*, int))dlsym(library, argv[2]);
  FILE* file = fopen(argv[3], "r+b");
  if (!function || !file) return puts("No such function or file."), 1;
  Bytes arguments = bytes(file);
  std::vector<Bytes> pieces;
  std::vector<long> places;
  for (int64_t offset; number(file, offset);) {
    places.push_back(ftell(file) + sizeof(int64_t));
    pieces.push_back(bytes(file));
    char* pointer = pieces.back().data();
    memcpy(arguments.data() + offset, &pointer, sizeof pointer);
  }
  function(arguments.data(), 1);
  for (size_t i = 0; i < pieces.size(); i++) {
    fseek(file, places[i], SEEK_SET);
    fwrite(pieces[i].data(), 1, pieces[i].size(), file);
  }
  return fclose(file);
}
