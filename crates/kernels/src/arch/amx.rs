//! Tiles of bfloat16 pairs with Intel's AMX, whose tile registers hold 16 rows of 64 bytes each.
//!
//! What runs on the processor is three routines of nothing but instructions; the tests take those
//! instructions apart and carry them out one by one, so that they are proven on machines without
//! AMX. Where there is AMX, a product is checked before any is believed ([`works`]).
//!
//! Source of the instructions' meaning: Intel 64 and IA-32 Architectures Software Developer's Manual,
//! volume 1 chapter 18, and volume 2.

use std::arch::naked_asm;
use std::ffi::c_void;
use std::mem::offset_of;

use crate::gemm::Tiles;
use crate::panel::{PANEL, STRIDE, WIDTH};

/// Rows of a tile register, and words of one of its rows.
const TILE: usize = 16;
/// Bytes from a row of a block to the next.
const BLOCK_STRIDE: usize = STRIDE * size_of::<f32>();
/// Bytes from a word of a panel, or a row of sums, to the next.
const PANEL_STRIDE: usize = WIDTH * size_of::<f32>();

/// What `ldtilecfg` reads: palette 1, bytes of a row and rows of each tile register.
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Config {
    /// Registers 0 to 5 hold sums, 6 rows of a block and 7 words of a panel, `words` of each.
    fn new(words: usize) -> Self {
        let (mut row_bytes, mut rows) = ([0; 16], [0; 16]);
        row_bytes[..8].fill(64);
        rows[..8].fill(TILE as u8);
        row_bytes[6] = (words * size_of::<f32>()) as u16;
        rows[7] = words as u8;
        Config { palette: 1, start_row: 0, reserved: [0; 14], row_bytes, rows }
    }
}

/// The operands of [`multiply`].
#[repr(C)]
struct Product {
    /// Words `[PANEL, STRIDE]`.
    block: *const f32,
    /// Words `[steps * 16, WIDTH]`.
    panel: *const f32,
    /// Sums `[PANEL, WIDTH]`.
    sums: *mut f32,
    /// Tiles along the sum, at least one.
    steps: u64,
    /// 1 if the sums start from zero, else 0.
    fresh: u64,
}

/// Code that takes one address.
type Routine = unsafe extern "sysv64" fn(*const c_void);

/// Takes over a [`Config`]; all registers become zero.
#[unsafe(naked)]
unsafe extern "sysv64" fn configure(_config: *const c_void) {
    naked_asm!("ldtilecfg [rdi]", "ret")
}

/// Gives the tile registers back, which makes switching threads cheaper.
#[unsafe(naked)]
unsafe extern "sysv64" fn release(_nothing: *const c_void) {
    naked_asm!("tilerelease", "ret")
}

/// `sums += block · panel` of a [`Product`]: of 48 rows and 32 lanes, in six registers, so that a
/// load of 16 rows goes with less than 16 rows of multiplying.
#[unsafe(naked)]
unsafe extern "sysv64" fn multiply(_product: *const c_void) {
    naked_asm!(
        "mov r8, [rdi + {block}]",
        "mov r9, [rdi + {panel}]",
        "mov r10, [rdi + {sums}]",
        "mov rcx, [rdi + {steps}]",
        "mov rax, {panel_stride}",
        "mov rdx, {block_stride}",
        "lea r11, [r8 + {block_rows}]",
        "lea rsi, [r8 + 2 * {block_rows}]",
        "cmp qword ptr [rdi + {fresh}], 0",
        "jne 2f",
        "tileloadd tmm0, [r10 + rax]",
        "tileloadd tmm1, [r10 + rax + 64]",
        "tileloadd tmm2, [r10 + rax + {sum_rows}]",
        "tileloadd tmm3, [r10 + rax + {sum_rows} + 64]",
        "tileloadd tmm4, [r10 + rax + 2 * {sum_rows}]",
        "tileloadd tmm5, [r10 + rax + 2 * {sum_rows} + 64]",
        "jmp 3f",
        "2:",
        "tilezero tmm0",
        "tilezero tmm1",
        "tilezero tmm2",
        "tilezero tmm3",
        "tilezero tmm4",
        "tilezero tmm5",
        "3:",
        "tileloadd tmm7, [r9 + rax]",
        "tileloadd tmm6, [r8 + rdx]",
        "tdpbf16ps tmm0, tmm6, tmm7",
        "tileloadd tmm6, [r11 + rdx]",
        "tdpbf16ps tmm2, tmm6, tmm7",
        "tileloadd tmm6, [rsi + rdx]",
        "tdpbf16ps tmm4, tmm6, tmm7",
        "tileloadd tmm7, [r9 + rax + 64]",
        "tdpbf16ps tmm5, tmm6, tmm7",
        "tileloadd tmm6, [r11 + rdx]",
        "tdpbf16ps tmm3, tmm6, tmm7",
        "tileloadd tmm6, [r8 + rdx]",
        "tdpbf16ps tmm1, tmm6, tmm7",
        "add r8, 64",
        "add r11, 64",
        "add rsi, 64",
        "add r9, {panel_step}",
        "sub rcx, 1",
        "jne 3b",
        "tilestored [r10 + rax], tmm0",
        "tilestored [r10 + rax + 64], tmm1",
        "tilestored [r10 + rax + {sum_rows}], tmm2",
        "tilestored [r10 + rax + {sum_rows} + 64], tmm3",
        "tilestored [r10 + rax + 2 * {sum_rows}], tmm4",
        "tilestored [r10 + rax + 2 * {sum_rows} + 64], tmm5",
        "ret",
        block = const offset_of!(Product, block),
        panel = const offset_of!(Product, panel),
        sums = const offset_of!(Product, sums),
        steps = const offset_of!(Product, steps),
        fresh = const offset_of!(Product, fresh),
        block_stride = const BLOCK_STRIDE,
        panel_stride = const PANEL_STRIDE,
        block_rows = const TILE * BLOCK_STRIDE,
        sum_rows = const TILE * PANEL_STRIDE,
        panel_step = const TILE * PANEL_STRIDE,
    )
}

/// Carries out tiles of pairs; `call` runs a routine with its address.
fn run_by(tiles: Tiles<'_>, mut call: impl FnMut(Routine, *const c_void)) {
    let (words, first, count) = tiles.words;
    assert!(count > 0, "nothing to multiply");
    let (whole, rest) = (count / TILE, count % TILE);
    for (from, steps, depth) in [(0, whole, TILE), (whole * TILE, 1, rest)] {
        if steps == 0 || depth == 0 {
            continue;
        }
        let config = Config::new(depth);
        call(configure, (&raw const config).cast());
        for (p, sums) in tiles.sums.chunks_exact_mut(PANEL).enumerate() {
            let panel = &tiles.panels[p * words + first + from..][..steps * depth];
            let block = &tiles.block[from..];
            let needed = (PANEL - 1) * STRIDE + steps * depth;
            assert!(block.len() >= needed, "the block is too short");
            let product = Product {
                block: block.as_ptr(),
                panel: panel.as_ptr().cast(),
                sums: sums.as_mut_ptr().cast(),
                steps: steps as u64,
                fresh: u64::from(tiles.fresh && from == 0),
            };
            call(multiply, (&raw const product).cast());
        }
    }
    call(release, std::ptr::null());
}

/// # Safety
/// The processor must have AMX for bfloat16, and the system must have granted it ([`granted`]).
pub(super) unsafe fn run(tiles: Tiles<'_>) {
    // SAFETY: the routines read and write what `run_by` checked, and keep what the ABI says they must:
    // they use registers that are the callee's and the flags.
    run_by(tiles, |routine, argument| unsafe { routine(argument) });
}

/// Whether the processor has AMX for bfloat16 and the system lets this process use it.
pub(super) fn granted() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    // Bits of leaf 7 EDX; XCR0 tells what the system saves when it switches threads.
    const AMX: u32 = 1 << 22 | 1 << 24;
    const TILE_STATE: u64 = 1 << 17 | 1 << 18;
    if __cpuid(0).eax < 7 || __cpuid_count(7, 0).edx & AMX != AMX || __cpuid(1).ecx >> 27 & 1 == 0 {
        return false;
    }
    #[target_feature(enable = "xsave")]
    fn saved() -> u64 {
        // SAFETY: register 0 is there where XGETBV is.
        unsafe { std::arch::x86_64::_xgetbv(0) }
    }
    // SAFETY: OSXSAVE was looked at above.
    (unsafe { saved() }) & TILE_STATE == TILE_STATE && asked()
}

/// Asks Linux for the tile registers, as a process must once before any of its threads first uses them.
#[cfg(target_os = "linux")]
fn asked() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: u64 = 0x1023;
    const XTILEDATA: u64 = 18;
    let mut result = ARCH_PRCTL;
    // SAFETY: the call takes two numbers and changes nothing but what this process may use.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") result,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") XTILEDATA,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result == 0
}

/// Other systems are not asked: none was seen.
#[cfg(not(target_os = "linux"))]
fn asked() -> bool {
    false
}

/// Whether `run` computes a product of small integers, which has no rounding, as it must.
fn computes(mut run: impl FnMut(Tiles<'_>), words: usize, fresh: bool) -> bool {
    // Whole numbers up to 8, of a sequence that no shift or exchange maps to itself.
    let number = |i: usize| (i * i * 31 + i * 7 + i / 5) % 17;
    let value = |i: usize| number(i) as f32 - 8.0;
    // A bfloat16 is the high half.
    let pair = |i: usize| f32::from_bits(value(i).to_bits() >> 16 | value(i + 1).to_bits());
    const PANELS: usize = 2;
    let count = words;
    let panels: Vec<[f32; WIDTH]> = (0..PANELS * count)
        .map(|w| std::array::from_fn(|lane| pair(1009 + 2 * (w * WIDTH + lane))))
        .collect();
    // Beyond the words a block may hold anything.
    let block: Vec<f32> = (0..PANEL * STRIDE)
        .map(|i| if i % STRIDE < count { pair(2 * i) } else { f32::NAN })
        .collect();
    let mut sums: Vec<[f32; WIDTH]> =
        (0..PANELS * PANEL).map(|r| std::array::from_fn(|lane| value(r * WIDTH + lane))).collect();
    let expected = |p: usize, row: usize, lane: usize| {
        let start = if fresh { 0.0 } else { value((p * PANEL + row) * WIDTH + lane) };
        (0..2 * count).fold(start, |sum, k| {
            let (word, half) = (k / 2, k % 2);
            let x = value(1009 + 2 * ((p * count + word) * WIDTH + lane) + half);
            sum + value(2 * (row * STRIDE + word) + half) * x
        })
    };
    run(Tiles {
        panels: &panels,
        lanes: PANELS * WIDTH,
        words: (count, 0, count),
        block: &block,
        rows: PANEL,
        fresh,
        sums: &mut sums,
    });
    (0..PANELS).all(|p| {
        let sums = &sums[p * PANEL..][..PANEL];
        let rows = sums.iter().enumerate();
        let mut all = rows.flat_map(|(r, row)| (0..WIDTH).map(move |l| (r, l, row[l])));
        all.all(|(row, lane, sum)| sum == expected(p, row, lane))
    })
}

/// Whether this processor's tiles compute what they must. Needs [`granted`].
///
/// # Safety
/// As [`run`].
pub(super) unsafe fn works() -> bool {
    // SAFETY: as promised.
    [(128, true), (37, false), (5, true)]
        .into_iter()
        .all(|(words, fresh)| computes(|tiles| unsafe { run(tiles) }, words, fresh))
}

#[cfg(test)]
mod tests;
