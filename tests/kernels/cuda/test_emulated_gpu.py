"""The emulated GPU itself: it rounds as a GPU does, and finds faults of small kernels that each have one."""

import ctypes

import pytest
import torch
from kernels.products import EMULATED

from genwright.kernels.cuda import nvrtc

pytestmark = [pytest.mark.skipif(not EMULATED, reason="has a GPU"), pytest.mark.usefixtures("cuda_device")]
LAUNCHES = 30  # in each of which warps take other turns


def run(body: str, *arguments, parameters: str = "int* y", headers: tuple[str, ...] = (), **launch) -> None:
    includes = "".join(f'#include "{name}.cuh"\n' for name in headers)
    source = f'{includes}extern "C" __global__ void kernel({parameters}) {{ const int t = threadIdx.x; {body} }}'
    code = nvrtc._compile(source, nvrtc._headers(), ("--gpu-architecture=sm_90a", "--std=c++17"))
    nvrtc.Kernel(code, "kernel")(launch.pop("grid", 1), launch.pop("threads", 64), arguments, **launch)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("__shared__ int s[12289]; s[t] = 1; __syncthreads(); y[t] = s[t ^ 1];", "more static shared memory"),
        ("y[t + 1] = 1;", "memory that is no argument's"),
        ("y[0] = y[t - 1];", "memory that is no argument's"),
        ("*(int2*)(y + 1) = int2{1, 2};", "not a multiple of 8"),
        ("extern __shared__ int s[]; s[t] = 1; y[t] = s[t ^ 32];", "outside of shared memory"),
        ("if (t < 32) __syncthreads(); else while (*(volatile int*)y == 0);", "it does not end"),
        ("if (t < 32) asm volatile(\"bar.sync 1, 64;\"); else y[t] = 1;", "wait for each other"),
        ("if (t < 32) asm volatile(\"bar.sync 1, 96;\"); else asm volatile(\"bar.sync 1, 64;\");", "other numbers"),
        ("asm volatile(\"nanosleep.u32 20;\");", "does not know the instruction nanosleep"),
        ("y[t] = __shfl_sync(1, t, 0);", "a mask names other threads"),
        ("((long*)y)[t / 2] = __shfl_xor_sync(~0u, (long)t, 1);", "vectors and second results"),
    ],
)  # fmt: skip
def test_faults(body, message):
    nvrtc._driver().emulator_configure(1, ctypes.c_uint64(1 << 20))  # so that what never ends ends soon
    y = torch.zeros(64, dtype=torch.int32)
    with pytest.raises(RuntimeError, match=message):
        run(body, y)


@pytest.mark.parametrize(
    ("launch", "message"),
    [
        ({"grid": 0}, "without blocks"),
        ({"grid": (1, 1 << 16, 1)}, "too many blocks"),
        ({"threads": 48}, "number of threads"),
        ({"shared": 228 << 10}, "more shared memory"),
    ],
)
def test_launches_that_a_gpu_refuses(launch, message):
    with pytest.raises(RuntimeError, match=message):
        run("y[t] = 1;", torch.zeros(64, dtype=torch.int32), **launch)


def wrong_at_least_once(body: str, **launch) -> bool:
    """Whether y is not 0, 1, 2 ... after one of many launches; its kernel moves each number by way of another warp."""
    wrong = False
    for _ in range(LAUNCHES):
        x, y = torch.arange(64, dtype=torch.int32), torch.zeros(64, dtype=torch.int32)
        run(body, x, y, parameters="const int* x, int* y", **launch)
        wrong = wrong or not torch.equal(y, x)
    return wrong


@pytest.mark.parametrize("barrier", ["__syncthreads();", ""])
def test_a_missing_barrier_is_noticed(barrier):
    body = f"__shared__ int s[64]; s[t ^ 32] = x[t ^ 32]; {barrier} y[t] = s[t];"
    assert wrong_at_least_once(body) is not bool(barrier)


@pytest.mark.parametrize("barrier", ["__syncwarp();", ""])
def test_a_missing_barrier_of_a_warp_is_noticed(barrier):
    body = f"__shared__ volatile int s[64]; s[t ^ 3] = x[t ^ 3]; {barrier} y[t] = s[t];"
    assert wrong_at_least_once(body) is not bool(barrier)


@pytest.mark.parametrize(("left", "right"), [(0, True), (1, False)])
def test_a_copy_that_was_not_waited_for_is_noticed(left, right):
    body = f"""
        __shared__ int s[64];
        const unsigned at = (unsigned)__cvta_generic_to_shared(s + t);
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(at), "l"(x + t) : "memory");
        asm volatile("cp.async.commit_group;" ::: "memory");
        asm volatile("cp.async.wait_group {left};" ::: "memory");
        __syncthreads();
        y[t] = *(volatile int*)(s + t);"""
    assert wrong_at_least_once(body) is not right


def copy_by_tma(before_reading: str, first: int = 0, pitch: int = 128) -> torch.Tensor:
    """y, to which a kernel brings two rows of 32 numbers by TMA."""
    x, y = torch.arange(64, dtype=torch.int32), torch.zeros(64, dtype=torch.int32)
    body = f"""
        __shared__ alignas(1024) int s[64];
        __shared__ Barrier copied;
        if (t == 0) {{
            copied.initialize(1);
            fence_async_proxy();
            copied.arrive_and_expect(sizeof(s));
            copy_box(s, map, copied, {first}, 0, 0);
        }}
        __syncthreads();
        {before_reading}
        y[t] = ((volatile int*)s)[t / 32 * 32 + (t % 32 / 4 ^ t / 32) * 4 + t % 4];"""
    maps = [nvrtc.TensorMap(x.data_ptr(), (128, 2, 1), (pitch, 256), (128, 2, 1))]
    headers = ("types", "shared_memory", "barrier", "tensor_map")
    run(body, maps, y, parameters="const __grid_constant__ TensorMap map, int* y", headers=headers)
    return y


def test_tma_copies_rows_to_swizzled_lines():
    for _ in range(LAUNCHES):
        assert torch.equal(copy_by_tma("copied.wait(0);"), torch.arange(64, dtype=torch.int32))


@pytest.mark.parametrize(
    ("copy", "message"),
    [
        ({"before_reading": ""}, "a block ends before its copies do"),
        ({"before_reading": "copied.wait(0);", "first": 8}, "a box that is not aligned"),
        ({"before_reading": "copied.wait(0);", "pitch": 136}, "a tensor map that TMA cannot use"),
    ],
)
def test_faults_of_tma(copy, message):
    with pytest.raises(RuntimeError, match=message):
        for _ in range(LAUNCHES):
            copy_by_tma(**copy)


def test_a_thread_goes_on_while_others_of_its_warp_wait_for_it_at_an_earlier_instruction():
    nvrtc._driver().emulator_configure(1, ctypes.c_uint64(1 << 20))
    body = """
        __shared__ volatile int s;
        if (t == 0) s = 0;
        __syncwarp();
        for (int i = 0; i < 50; i++) {
            while (s < i);
            if (t == 0) s = i + 1;
        }
        y[t] = s;"""
    for _ in range(LAUNCHES):
        run(body, torch.zeros(32, dtype=torch.int32), threads=32)


WAIT = 'asm volatile("griddepcontrol.wait;" ::: "memory");'


def chain(first: str, second: str) -> int:
    """The sum of what a kernel reads, of which the one before it writes each as 1."""
    y, z = torch.zeros(64, dtype=torch.int32), torch.zeros(64, dtype=torch.int32)
    run(first, y, dependent=True)
    run(second, y, z, parameters="const int* x, int* y", dependent=True)
    return int(z.sum())


def test_a_dependent_kernel_sees_results_only_after_its_wait():
    writes = f"{WAIT} y[t] = 1;"
    assert chain(writes, f"{WAIT} y[t] = x[t];") == 64
    assert chain(writes, f"const int early = *(volatile const int*)(x + t); {WAIT} y[t] = early;") == 0
    with pytest.raises(RuntimeError, match="before the kernel waits"):
        chain("y[t] = 1;", f"{WAIT} y[t] = x[t];")
    with pytest.raises(RuntimeError, match="before the kernel waits"):
        chain(f"if (t == 0) {WAIT} y[t] = 1;", f"{WAIT} y[t] = x[t];")


def test_a_dependent_kernel_sees_what_pytorch_writes_before_it():
    y, z = torch.zeros(64, dtype=torch.int32), torch.zeros(64, dtype=torch.int32)
    run(f"{WAIT} y[t] = 1;", y, dependent=True)
    y[:32] = 5
    run(f"const int x0 = *(volatile const int*)(x + t); {WAIT} y[t] = x0;", y, z, parameters="const int* x, int* y",
        dependent=True)  # fmt: skip
    assert z.tolist() == [5] * 32 + [0] * 32


TYPES = {"f16": (torch.float16, 11), "bf16": (torch.bfloat16, 8)}  # and significant bits


def same(got: torch.Tensor, want: torch.Tensor) -> bool:
    return torch.equal(got.isnan(), want.isnan()) and torch.equal(got[~want.isnan()], want[~want.isnan()])


@pytest.mark.parametrize("type_name", TYPES)
def test_rounding_and_widening_equal_torchs(type_name):
    dtype = TYPES[type_name][0]
    codes = torch.arange(-(1 << 15), 1 << 15).to(torch.int16)
    every = codes.view(dtype).float()
    ties = (every + (codes + 1).view(dtype).float()) / 2
    values = torch.cat([torch.randn(1 << 16) * 10.0 ** torch.randint(-40, 39, (1 << 16,)), every, ties])
    got, wide = torch.empty(len(values), dtype=dtype), torch.empty(len(codes))
    loop = "for (int i = blockIdx.x * blockDim.x + t; i < count; i += gridDim.x * blockDim.x)"
    body = f"""{loop} {{
        short bits;
        asm("cvt.rn.{type_name}.f32 %0, %1;" : "=h"(bits) : "f"(x[i]));
        y[i] = bits;
    }}"""
    launch = {"grid": 4, "threads": 256}
    run(body, values, got, len(values), parameters="const float* x, short* y, int count", **launch)
    assert same(got, values.to(dtype))
    if type_name == "f16":  # the kernels widen bf16 by a shift
        body = f'{loop} asm("cvt.f32.f16 %0, %1;" : "=f"(y[i]) : "h"(x[i]));'
        run(body, codes, wide, len(codes), parameters="const short* x, float* y, int count", **launch)
        assert same(wide, every)


def test_fp8_becomes_what_torch_says():
    codes = torch.arange(256, dtype=torch.uint8)
    got = torch.empty(256, dtype=torch.float16)
    body = 'asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(y[t]) : "h"(x[t]));'
    run(body, codes, got, parameters="const short* x, int* y", threads=128)
    assert same(got, codes.view(torch.float8_e4m3fn).to(torch.float16))


def rounded(exact: torch.Tensor, significant: int) -> torch.Tensor:
    """float64 to so many significant bits, in one step; torch rounds to float32 first."""
    unit = 2.0 ** (exact.frexp().exponent - significant)
    return (exact / unit).round() * unit


@pytest.mark.parametrize("operation", ["add", "mul", "fma"])
@pytest.mark.parametrize("type_name", TYPES)
def test_arithmetic_of_halves_rounds_once(type_name, operation):
    dtype, significant = TYPES[type_name]
    a, b, c = ((torch.rand(3, 4096) + 0.5) * 2.0 ** torch.randint(-3, 3, (3, 4096))).to(dtype)
    y = torch.empty_like(a)
    third = ', "r"(c[i])' if operation == "fma" else ""
    body = f"""
        for (int i = t; i < 2048; i += blockDim.x)
            asm("{operation}.rn.{type_name}x2 %0, %1, %2{", %3" if third else ""};"
                : "=r"(y[i]) : "r"(a[i]), "r"(b[i]){third});"""
    run(body, a, b, c, y, parameters="const int* a, const int* b, const int* c, int* y")
    exact = {"add": a.double() + b.double(), "mul": a.double() * b.double()}
    want = exact.get(operation, a.double() * b.double() + c.double())
    assert torch.equal(y.double(), rounded(want, significant))


def test_a_sum_that_float64_cannot_hold_rounds_once():
    a, b, c = (torch.tensor([value, value], dtype=torch.bfloat16) for value in (1.5, 1 + 2**-7, -(2**-60)))
    y = torch.empty_like(a)
    body = 'if (t == 0) asm volatile("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(*y) : "r"(*a), "r"(*b), "r"(*c));'
    run(body, a, b, c, y, parameters="const int* a, const int* b, const int* c, int* y")
    assert y.tolist() == [1.5078125] * 2  # 1.5 + 1.5 x 2^-7 would be a tie, rounded to even: 1.515625


def test_zeros_are_ordered_by_their_signs():
    x, y = torch.tensor([-0.0, 0.0]), torch.empty(4)
    pair = '"f"(x[t]), "f"(x[1 - t])'
    body = f"""if (t < 2) {{
        asm("max.ftz.f32 %0, %1, %2;" : "=f"(y[t]) : {pair});
        asm("min.ftz.f32 %0, %1, %2;" : "=f"(y[t + 2]) : {pair});
    }}"""
    run(body, x, y, parameters="const float* x, float* y", threads=32)
    assert y.signbit().tolist() == [False, False, True, True]
