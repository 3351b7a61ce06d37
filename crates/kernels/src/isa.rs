//! Which instruction set the kernels use: found once at run time, overridable for comparison.

use std::sync::OnceLock;

/// An instruction set that kernels are written for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Isa {
    /// Plain Rust; what the compiler makes of it on the baseline processor.
    Portable,
    /// AArch64 Advanced SIMD, with half-precision conversions.
    Neon,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, VL, DQ, besides all of AVX2.
    Avx512,
    /// AVX-512 with BF16, and AMX for products of bfloat16.
    Amx,
}

impl Isa {
    /// The best instruction set this processor has.
    pub fn detect() -> Isa {
        static BEST: OnceLock<Isa> = OnceLock::new();
        *BEST.get_or_init(|| Isa::available().last().copied().unwrap_or(Isa::Portable))
    }

    /// Every instruction set this processor can run, worst first; always holds [`Isa::Portable`].
    pub fn available() -> &'static [Isa] {
        static ALL: OnceLock<Vec<Isa>> = OnceLock::new();
        ALL.get_or_init(|| {
            [Isa::Portable, Isa::Neon, Isa::Avx2, Isa::Avx512, Isa::Amx]
                .into_iter()
                .filter(|i| i.runs_here())
                .collect()
        })
    }

    fn runs_here(self) -> bool {
        match self {
            Isa::Portable => true,
            Isa::Neon => cfg!(target_arch = "aarch64"),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => {
                Isa::Avx2.runs_here()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512dq")
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Amx => Isa::Avx512.runs_here() && Isa::has_tiles(),
            #[cfg(not(target_arch = "x86_64"))]
            Isa::Avx2 | Isa::Avx512 | Isa::Amx => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_is_available() {
        assert_eq!(Isa::available()[0], Isa::Portable);
        assert_eq!(Isa::available().last(), Some(&Isa::detect()));
    }
}
