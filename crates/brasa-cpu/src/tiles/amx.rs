//! The processor's own unit for products of tiles: AMX.
//!
//! A thread has one set of tiles, whose shapes it loads before products and releases after them. `AmxThread` stands for that
//! set: a thread has at most one at a time.
//!
//! Rust has neither intrinsics nor target features for AMX yet, only the names of its registers: products are
//! inline assembly. The system saves 8 KiB more per thread once a process has asked for the permission to use
//! tiles; Linux may refuse.
#![expect(unsafe_code, reason = "instructions that the compiler has no names for")]

use std::arch::asm;
use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::OnceLock;

use super::{BF16_INPUTS, Bf16Factors, Bf16MatrixUnit, Codes, Int8MatrixUnit, ROWS, SLOTS, Sums, Weights};

/// Proof that this CPU has AMX tiles with int8 and bf16, and that the system lets this process use them; only
/// [`Amx::detect`] makes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Amx(());

impl Amx {
    /// The proof; `None` if the CPU lacks the instructions or the system does not let this process use them.
    pub fn detect() -> Option<Self> {
        static FOUND: OnceLock<bool> = OnceLock::new();
        FOUND.get_or_init(|| processor_has_tiles() && permitted()).then_some(Self(()))
    }

    /// Sets this thread's tiles up for products of `rows` rows of int8 over the inputs of a block, in one or two parts. Sums beyond
    /// these rows are left undefined.
    ///
    /// # Panics
    ///
    /// If there are more parts, more than 16 rows, or tiles that this thread has set up already.
    pub(crate) fn int8(self, parts: usize, rows: usize) -> AmxInt8 {
        assert!(
            (1..=2).contains(&parts) && (1..=ROWS).contains(&rows),
            "{parts} parts of a block, {rows} rows"
        );
        let (sums, a, b) = ((rows as u8, 64), (rows as u8, 32 / parts as u16), (8 / parts as u8, 64));
        AmxInt8 { parts, _thread: AmxThread::new(self, [sums, sums, sums, sums, a, a, b, b]) }
    }

    /// Sets this thread's tiles up for bf16.
    ///
    /// # Panics
    ///
    /// If this thread has set tiles up already.
    pub(crate) fn bf16(self) -> AmxThread {
        AmxThread::new(self, [(16, 64); 8])
    }
}

/// Leaf 7 of CPUID says what the processor has, register XCR0 what the system saves between threads.
fn processor_has_tiles() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    const OSXSAVE: u32 = 1 << 27;
    const AMX_BF16_TILE_INT8: u32 = 1 << 22 | 1 << 24 | 1 << 25;
    const TILE_STATE: u64 = 1 << 17 | 1 << 18;
    let (leaves, first) = (__cpuid(0).eax, __cpuid(1));
    if leaves < 7 || first.ecx & OSXSAVE == 0 {
        return false;
    }
    let (low, high): (u32, u32);
    // SAFETY: the system has enabled XGETBV, as OSXSAVE says.
    unsafe { asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") high, options(nomem, nostack)) };
    let saved = u64::from(high) << 32 | u64::from(low);
    __cpuid_count(7, 0).edx & AMX_BF16_TILE_INT8 == AMX_BF16_TILE_INT8 && saved & TILE_STATE == TILE_STATE
}

/// Requests tiles from Linux, which gives them only to processes that request them.
#[cfg(target_os = "linux")]
fn permitted() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: u64 = 0x1023;
    const XTILEDATA: u64 = 18;
    let refused: i64;
    // SAFETY: a system call that touches no memory of this program.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => refused,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") XTILEDATA,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    refused == 0
}

/// How other systems are asked has not been tried.
#[cfg(not(target_os = "linux"))]
const fn permitted() -> bool {
    false
}

/// Proof that this thread's tiles are set up. Dropping it releases them.
#[derive(Debug)]
pub(crate) struct AmxThread {
    _claim: TileClaim,
}

/// The only claim of this thread to its tiles: a second one would load other shapes under the first, and release them under it.
#[derive(Debug)]
struct TileClaim {
    /// Keeps the claim on its thread.
    _thread: PhantomData<*const ()>,
}

thread_local! {
    static CLAIMED: Cell<bool> = const { Cell::new(false) };
}

impl TileClaim {
    fn new() -> Self {
        assert!(!CLAIMED.replace(true), "this thread's tiles are set up already");
        Self { _thread: PhantomData }
    }
}

impl Drop for TileClaim {
    fn drop(&mut self) {
        CLAIMED.set(false);
    }
}

/// Palette 1: rows and bytes of a row of each tile.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// Proof that this thread's tiles are set up for products of int8.
#[derive(Debug)]
pub(crate) struct AmxInt8 {
    /// Parts of a block.
    parts: usize,
    _thread: AmxThread,
}

impl AmxThread {
    fn new(_: Amx, tiles: [(u8, u16); 8]) -> Self {
        let mut configuration =
            Configuration { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        for (index, (rows, row_bytes)) in tiles.into_iter().enumerate() {
            configuration.rows[index] = rows;
            configuration.row_bytes[index] = row_bytes;
        }
        let claim = TileClaim::new();
        // SAFETY: the proof; no one else uses this thread's tiles; 64 bytes are read.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const configuration, options(nostack, readonly)) };
        Self { _claim: claim }
    }
}

/// `$rounds` products of full tiles that stay in registers, on six chains of sums; gives all sums' first elements together.
macro_rules! chain {
    ($a:expr, $b:expr, $rounds:expr, $c:expr, $operation:literal) => {
        asm!(
            "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3", "tilezero tmm4", "tilezero tmm5",
            "tileloadd tmm6, [{a} + {stride}*1]",
            "tileloadd tmm7, [{b} + {stride}*1]",
            "2:",
            concat!($operation, " tmm0, tmm6, tmm7"),
            concat!($operation, " tmm1, tmm6, tmm7"),
            concat!($operation, " tmm2, tmm6, tmm7"),
            concat!($operation, " tmm3, tmm6, tmm7"),
            concat!($operation, " tmm4, tmm6, tmm7"),
            concat!($operation, " tmm5, tmm6, tmm7"),
            "dec {rounds}",
            "jnz 2b",
            "tilestored [{c} + {stride}*1], tmm0",
            "tilestored [{c} + {stride}*1 + 1024], tmm1",
            "tilestored [{c} + {stride}*1 + 2048], tmm2",
            "tilestored [{c} + {stride}*1 + 3072], tmm3",
            "tilestored [{c} + {stride}*1 + 4096], tmm4",
            "tilestored [{c} + {stride}*1 + 5120], tmm5",
            a = in(reg) $a,
            b = in(reg) $b,
            c = in(reg) $c,
            rounds = inout(reg) $rounds => _,
            stride = in(reg) 64_usize,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        )
    };
}

/// Sums that [`Amx::chain_int8`] and [`Amx::chain_bf16`] make side by side: latency times throughput of a product.
pub(crate) const CHAINS: usize = 6;

/// A tile for [`Amx::chain_int8`] and [`Amx::chain_bf16`].
#[repr(C, align(64))]
struct Operand<T, const N: usize>([[T; N]; ROWS]);

impl Amx {
    /// Multiplies full tiles of ones and of minus ones `rounds` times on every chain, for their speed; the sum of one
    /// element of each.
    pub(crate) fn chain_int8(self, rounds: u64) -> f64 {
        let _thread = self.bf16();
        let (a, b) = (Operand([[1_i8; 64]; ROWS]), Operand([[-1_i8; 64]; ROWS]));
        let mut c = [Sums([[0_i32; 16]; ROWS]); CHAINS];
        // SAFETY: all of this thread's tiles are full; two are read, as many as there are sums are written.
        unsafe {
            chain!(a.0.as_ptr(), b.0.as_ptr(), rounds.max(1), c.as_mut_ptr(), "tdpbssd");
        }
        c.iter().map(|sums| f64::from(sums.0[0][0])).sum()
    }

    /// Multiplies full tiles of bf16 like [`chain_int8`](Self::chain_int8).
    pub(crate) fn chain_bf16(self, rounds: u64) -> f64 {
        let _thread = self.bf16();
        let (a, b) = (Operand([[0x3f80_u16; BF16_INPUTS]; ROWS]), Operand([[0xbf80_u16; BF16_INPUTS]; ROWS]));
        let mut c = [Sums([[0.0_f32; 16]; ROWS]); CHAINS];
        // SAFETY: all of this thread's tiles are full; two are read, as many as there are sums are written.
        unsafe {
            chain!(a.0.as_ptr(), b.0.as_ptr(), rounds.max(1), c.as_mut_ptr(), "tdpbf16ps");
        }
        c.iter().map(|sums| f64::from(sums.0[0][0])).sum()
    }
}

impl Drop for AmxThread {
    fn drop(&mut self) {
        // SAFETY: this thread set its tiles up, and its claim, which is dropped after this, is the only one.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}

/// One product of int8 tiles into memory.
macro_rules! dot {
    ($a:expr, $b:expr, $c:expr, $operation:literal $sums:tt $left:tt $right:tt) => {
        asm!(
            concat!("tilezero ", $sums),
            concat!("tileloadd ", $left, ", [{a} + {a_stride}*1]"),
            concat!("tileloadd ", $right, ", [{b} + {stride}*1]"),
            concat!($operation, " ", $sums, ", ", $left, ", ", $right),
            concat!("tilestored [{c} + {stride}*1], ", $sums),
            a = in(reg) $a,
            a_stride = in(reg) 32_usize,
            b = in(reg) $b,
            c = in(reg) $c,
            stride = in(reg) 64_usize,
            out($sums) _,
            out($left) _,
            out($right) _,
            options(nostack),
        )
    };
}

/// Makes the sums of `$steps` products of bf16 tiles for a list of groups and panels, all of them pointers; sums begin
/// with what is in memory (`load`) or with zero.
macro_rules! sum_bf16 {
    (
        $begin:ident $steps:expr,
        rows $($a:ident $rows:expr),*;
        panels $($b:ident $panel:expr, $c:ident $results:expr),*;
        sums $($sums:literal $to:ident $offset:literal),*;
        $($step:tt)*
    ) => {
        asm!(
            $(sum_bf16!($begin $sums $to $offset),)*
            "2:",
            $(sum_bf16!(@ $step),)*
            $(concat!("add {", stringify!($a), "}, 1024"),)*
            $(concat!("add {", stringify!($b), "}, 1024"),)*
            "dec {steps}",
            "jnz 2b",
            $(concat!("tilestored [{", stringify!($to), "} + {stride}*1 + ", $offset, "], ", $sums),)*
            $($a = inout(reg) $rows => _,)*
            $($b = inout(reg) $panel => _, $c = in(reg) $results,)*
            steps = inout(reg) $steps => _,
            stride = in(reg) 64_usize,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        )
    };
    (load $sums:literal $to:ident $offset:literal) => {
        concat!("tileloadd ", $sums, ", [{", stringify!($to), "} + {stride}*1 + ", $offset, "]")
    };
    (zero $sums:literal $to:ident $offset:literal) => {
        concat!("tilezero ", $sums)
    };
    (@ (load $tile:literal $from:ident)) => {
        concat!("tileloadd ", $tile, ", [{", stringify!($from), "} + {stride}*1]")
    };
    (@ (add $sums:literal $left:literal $right:literal)) => {
        concat!("tdpbf16ps ", $sums, ", ", $left, ", ", $right)
    };
}

impl Int8MatrixUnit for AmxInt8 {
    #[inline(always)]
    fn dot<const UNSIGNED: bool>(&self, slot: usize, part: usize, a: &Codes, b: &Weights, c: &mut Sums<i32>) {
        assert!(slot < SLOTS && part < self.parts, "slot {slot}, part {part}");
        let c = c.0.as_mut_ptr();
        // SAFETY: this thread's tiles are set up; of rows of 32 bytes and of 512 bytes of weights all are read or the
        // half that there is, 1,024 bytes are written.
        unsafe {
            let a = a.as_ptr().cast::<u8>().add(16 * part);
            let b = b.as_ptr().add(256 * part);
            match (slot, UNSIGNED) {
                (0, false) => dot!(a, b, c, "tdpbssd" "tmm0" "tmm4" "tmm6"),
                (1, false) => dot!(a, b, c, "tdpbssd" "tmm1" "tmm5" "tmm7"),
                (2, false) => dot!(a, b, c, "tdpbssd" "tmm2" "tmm4" "tmm6"),
                (_, false) => dot!(a, b, c, "tdpbssd" "tmm3" "tmm5" "tmm7"),
                (0, true) => dot!(a, b, c, "tdpbsud" "tmm0" "tmm4" "tmm6"),
                (1, true) => dot!(a, b, c, "tdpbsud" "tmm1" "tmm5" "tmm7"),
                (2, true) => dot!(a, b, c, "tdpbsud" "tmm2" "tmm4" "tmm6"),
                (_, true) => dot!(a, b, c, "tdpbsud" "tmm3" "tmm5" "tmm7"),
            }
        }
    }
}

impl Bf16MatrixUnit for AmxThread {
    fn sum_bf16<const ADD: bool>(&self, factors: Bf16Factors<'_>, c: &mut [&mut [Sums<f32>]]) {
        let steps = factors.check(c);
        if steps == 0 {
            if !ADD {
                for c in c {
                    c.fill(Sums([[0.0; 16]; ROWS]));
                }
            }
            return;
        }
        // SAFETY: this thread's tiles are set up; the factors were found to have `steps` tiles each and that
        // there are sums of all groups and panels.
        unsafe {
            match (factors.a, factors.b, c) {
                ([a0, a1], [b0, b1], [c0, c1]) => {
                    let ([a0, a1], [b0, b1]) = ([a0.as_ptr(), a1.as_ptr()], [b0.as_ptr(), b1.as_ptr()]);
                    let (c0, c1) = (c0.as_mut_ptr(), c1.as_mut_ptr());
                    macro_rules! four {
                        ($begin:ident) => {
                            sum_bf16!(
                                $begin steps,
                                rows a0 a0, a1 a1;
                                panels b0 b0, c0 c0, b1 b1, c1 c1;
                                sums "tmm0" c0 0, "tmm1" c0 1024, "tmm2" c1 0, "tmm3" c1 1024;
                                (load "tmm4" a0) (load "tmm6" b0) (add "tmm0" "tmm4" "tmm6")
                                (load "tmm5" a1) (add "tmm1" "tmm5" "tmm6")
                                (load "tmm7" b1) (add "tmm2" "tmm4" "tmm7") (add "tmm3" "tmm5" "tmm7")
                            )
                        };
                    }
                    if ADD {
                        four!(load);
                    } else {
                        four!(zero);
                    }
                }
                (a, b, c) => {
                    for (b, c) in b.iter().zip(c) {
                        for (a, c) in a.iter().zip(&mut **c) {
                            let (a, b, c): (_, _, *mut Sums<f32>) = (a.as_ptr(), b.as_ptr(), c);
                            macro_rules! one {
                                ($begin:ident) => {
                                    sum_bf16!(
                                        $begin steps,
                                        rows a0 a;
                                        panels b0 b, c0 c;
                                        sums "tmm0" c0 0;
                                        (load "tmm4" a0) (load "tmm6" b0) (add "tmm0" "tmm4" "tmm6")
                                    )
                                };
                            }
                            if ADD {
                                one!(load);
                            } else {
                                one!(zero);
                            }
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_claims_its_tiles_once_at_a_time() {
        let claim = TileClaim::new();
        let second = std::panic::catch_unwind(|| drop(TileClaim::new()));
        assert!(second.is_err(), "a second claim");
        std::thread::spawn(|| drop(TileClaim::new())).join().unwrap();
        // The failed claim has not released the first.
        assert!(CLAIMED.get());
        drop(claim);
        drop(TileClaim::new());
    }

    #[test]
    fn a_second_set_of_tiles_is_refused_while_the_first_lives() {
        let Some(amx) = Amx::detect() else {
            brasa_fuzz::skipped("claims of tiles", "this processor lacks AMX");
            return;
        };
        let first = amx.int8(1, 16);
        assert!(std::panic::catch_unwind(|| drop(amx.bf16())).is_err());
        let (mut c, a, b) = (Sums([[0; 16]; ROWS]), [[1; 32]; ROWS], [2; 512]);
        first.dot::<false>(0, 0, &a, &b, &mut c);
        assert_eq!(c.0, [[64; 16]; ROWS]);
    }
}
