//! Behaviours on which sources disagree: what an emulated machine can be told to do either way.

use std::fmt;

use serde::Deserialize;

/// Defines an enum of alternatives with the names that chip files use.
macro_rules! choice {
    ($($(#[$doc:meta])* $name:ident { $($(#[$alternative:meta])* $variant:ident $text:literal,)* })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Deserialize)]
            pub enum $name { $($(#[$alternative])* #[serde(rename = $text)] $variant,)* }

            impl $name {
                /// The alternatives with their names in chip files.
                pub const ALL: &'static [(&'static str, $name)] = &[$(($text, $name::$variant),)*];
            }

            impl fmt::Display for $name {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.write_str(match self { $($name::$variant => $text,)* })
                }
            }
        )*
    };
}

choice! {
    /// Whether the compiler takes a thing.
    Acceptance {
        /// It compiles.
        Accepted "accepted",
        /// It does not compile.
        Refused "refused",
    }
    /// What becomes of something given to the engine.
    Effect {
        /// It takes effect.
        Applied "applied",
        /// It is accepted and has no effect.
        Ignored "ignored",
    }
    /// What becomes of a weight file that was overwritten when its program is loaded again.
    Reload {
        /// The program computes with the new weights.
        Applied "applied",
        /// It is loaded and computes with the old ones.
        Ignored "ignored",
        /// It is not loaded.
        Refused "refused",
    }
    /// What the limit on weights of one program counts.
    SlotUnit {
        /// Constants that refer to a weight file.
        Tensors "tensors",
        /// Entries of the weight dictionary, however many constants refer to each.
        Files "files",
    }
    /// What the minimum of 49,152 bytes applies to.
    SurfaceUnit {
        /// The bytes allocated for the surface.
        Allocation "allocation",
        /// The bytes of the packed tensor.
        Tensor "tensor",
        /// Nothing: there is no minimum.
        Nothing "nothing",
    }
    /// By what surfaces are bound to a program's inputs and outputs.
    BindingOrder {
        /// Alphabetical order of the names.
        Name "name",
        /// Inputs by ascending, outputs by descending size.
        Size "size",
        /// The order of the signature.
        Signature "signature",
    }
    /// How the engine holds a sum of products.
    Accumulator {
        /// Fixed point with 16 fraction bits, saturating.
        Q15_16 "q15.16",
        /// Like fp32, with groups of four products rounded to fp16.
        Fp32Grouped "fp32-grouped",
    }
    /// What the engine does with a compressed weight.
    WeightPath {
        /// Streams it compressed.
        Stream "stream",
        /// Expands it to fp16 when compiling: smaller files, no bandwidth gained.
        Expand "expand",
        /// Core ML runs the operation elsewhere.
        OffEngine "off-engine",
    }
    /// What kind of machine the chip is in, which decides Core ML's memory limits.
    Platform {
        /// macOS.
        Mac "mac",
        /// iOS.
        Phone "phone",
    }
}
