//! The sections of a chip file. A field that is absent is unknown.

use std::collections::BTreeMap;

use serde::Deserialize;
use tensor::DType;

use super::fact::Fact;
use super::switches::{
    Acceptance, Accumulator, BindingOrder, Effect, Reload, SlotUnit, SurfaceUnit, WeightPath,
};

/// Defines the sections, their fields, and the list of sections.
macro_rules! sections {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $ty:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, PartialEq, Debug, Default, Deserialize)]
            #[serde(deny_unknown_fields, default)]
            pub struct $name { $($(#[$field_doc])* pub $field: Option<Fact<$ty>>,)* }

            impl $name {
                /// Forgets what contradicts the values.
                pub(super) fn settle(&mut self) {
                    $(if let Some(fact) = &mut self.$field { fact.claims.clear(); })*
                }
            }
        )*
    };
}

sections! {
    /// What the chip is.
    Identity {
        /// Code name of the engine's generation, such as `h16g`.
        generation: String,
        /// Version of the task descriptor in compiled programs.
        descriptor: u64,
        /// Engines.
        engines: u64,
        /// Cores of each engine.
        cores: u64,
        /// Highest clock.
        clock_ghz: f64,
    }

    /// Sizes beyond which a program is refused.
    Limits {
        /// Longest batch axis.
        batch: u64,
        /// Most channels, except of convolutions.
        channels: u64,
        /// Most channels of a convolution's input or output.
        conv_channels: u64,
        /// Longest depth axis.
        depth: u64,
        /// Longest height axis.
        height: u64,
        /// Longest width axis.
        width: u64,
        /// Highest rank.
        rank: u64,
        /// Longest reduction of a matrix product.
        reduction: u64,
        /// Widest kernel of height 1.
        kernel_width: u64,
        /// Highest kernel of width 1.
        kernel_height: u64,
        /// Largest square kernel.
        kernel_square: u64,
        /// Widest kernel that runs at full speed.
        kernel_width_native: u64,
        /// Largest square window of max pooling.
        max_pool: u64,
        /// Highest window of max pooling of width 1.
        max_pool_height: u64,
        /// Widest window of max pooling of height 1.
        max_pool_width: u64,
        /// Fewest input channels that a convolution on the direct path was seen to be refused for.
        direct_conv_inputs_refused: u64,
        /// Most channels of a scale or offset per channel.
        scaled_channels: u64,
        /// Longest axis of one softmax.
        softmax: u64,
        /// Largest `k` of `topk` seen to work.
        topk: u64,
        /// Most boxes of non-maximum suppression.
        nms_boxes: u64,
        /// Most values in a table of vectors.
        vector_table_values: u64,
        /// Widest vector of a table.
        vector_width: u64,
        /// Deepest chain of layers that compiles.
        layers_deep: u64,
    }

    /// What a program's inputs and outputs may be.
    Io {
        /// Element types of inputs and outputs.
        dtypes: DTypes,
        /// Inputs of one function.
        inputs: u64,
        /// Inputs of one function with which nobody saw a failure.
        inputs_reliable: u64,
        /// Smallest surface.
        surface_bytes: u64,
        /// Number that the width must be a multiple of, lest data go wrong.
        width_multiple: u64,
        /// Fewest columns that wide tensors of the direct path need.
        columns: u64,
    }

    /// What one process can hold.
    Runtime {
        /// Compilations until they fail.
        compiles: u64,
        /// Programs that are loaded at a time.
        loaded_programs: u64,
        /// Requests in flight.
        queue: u64,
        /// Weights of one program, counted as [`Switches::slot_unit`] says.
        weight_slots: u64,
        /// Weight slots that scalar operands take together.
        scalar_slots: u64,
        /// Time to replace the process by itself.
        restart_ms: f64,
    }

    /// Memories.
    Memory {
        /// On-chip working set beyond which a program slows down.
        working_set: u64,
        /// Cache of one engine.
        cache: u64,
        /// Weight buffer of one core.
        weight_buffer: u64,
    }

    /// Speeds.
    Rates {
        /// Peak of fp16 arithmetic, all engines together.
        fp16_tflops: f64,
        /// Peak of int8 arithmetic, all engines together.
        int8_tops: f64,
        /// Streaming of fp16 weights from memory.
        weight_gbps: f64,
        /// Reading of activations from memory.
        activation_read_gbps: f64,
        /// Writing of activations to memory.
        activation_write_gbps: f64,
        /// Host time of one evaluation on the direct path.
        dispatch_ms: f64,
        /// Host time of one Core ML prediction besides the engine's work.
        coreml_dispatch_ms: f64,
        /// One compilation of a small program.
        compile_ms: f64,
        /// One load of a compiled program.
        load_ms: f64,
        /// Bytes streamed by a core whose multiples run into the DMA notch.
        notch_period: u64,
        /// How near to a multiple the notch is felt.
        notch_tolerance: u64,
        /// Streaming of weights in the notch.
        notch_gbps: f64,
    }

    /// Core ML's own numbers: what its segmenter computes with, and how large programs may be.
    CoreMl {
        /// Estimated arithmetic of the engine.
        ane_tflops: f64,
        /// Estimated memory rate of the engine.
        ane_gbps: f64,
        /// Estimated arithmetic of the CPU's matrix library.
        bnns_gflops: f64,
        /// Estimated memory rate of the CPU's matrix library.
        bnns_gbps: f64,
        /// Estimated arithmetic of the older CPU backend.
        classic_gflops: f64,
        /// Estimated memory rate of the older CPU backend.
        classic_gbps: f64,
        /// Price of starting a run of operations on the engine.
        launch_ms: f64,
        /// Price of changing the backend between neighbours.
        change_ms: f64,
        /// Price of leaving an output on the engine.
        output_ms: f64,
        /// Bytes of one program with which nobody saw a failure.
        program_bytes: u64,
        /// Bytes of one program beyond which it fails.
        program_bytes_max: u64,
        /// Operations of one program that are known to compile in reasonable time.
        operations: u64,
        /// Transformer layers of one program that are known to compile.
        layers: u64,
        /// States of one program.
        states: u64,
        /// Number that a state's dimensions must be multiples of.
        state_multiple: u64,
        /// Reduction length below which Core ML prefers another backend.
        reduction_preferred: u64,
    }

    /// The engine's arithmetic.
    Numerics {
        /// How sums of products are held.
        accumulator: Accumulator,
        /// Magnitude from which a sum of products is infinite.
        saturation: f64,
        /// Fraction bits of the accumulator: smaller products are lost.
        fraction_bits: u64,
        /// Points of the tables that activation functions are read from.
        table_points: u64,
        /// Largest magnitude that a slice along the width with an offset keeps; none is lost where
        /// this is absent.
        slice_offset_max: f64,
        /// Smallest magnitude that is not lost.
        smallest: f64,
        /// Argument from which softplus is 0.
        softplus_max: f64,
    }

    /// What becomes of compressed weights.
    Formats {
        /// Palettes of 4-bit indices.
        palette4: WeightPath,
        /// One int8 scale a tensor or an output channel.
        int8: WeightPath,
        /// Sparse weights.
        sparse: WeightPath,
        /// Scales for blocks along the input channels.
        blockwise: WeightPath,
    }

    /// Behaviours on which sources disagree.
    Switches {
        /// Overwriting a loaded program's weight file, unloading and loading again.
        delta_reload: Reload,
        /// `concat` on the direct path.
        concat: Acceptance,
        /// `gelu` by name on the direct path.
        gelu: Acceptance,
        /// `silu` by name on the direct path.
        silu: Acceptance,
        /// `pow`.
        pow: Acceptance,
        /// `rsqrt` on the direct path.
        rsqrt: Acceptance,
        /// Softmax over a length that is no power of two, on the direct path.
        softmax_any_length: Acceptance,
        /// Products whose inner length is no multiple of 32, on the direct path.
        matmul_any_length: Acceptance,
        /// `sin` and `cos`.
        sine: Acceptance,
        /// Convolutions whose weights are no constants.
        dynamic_conv: Acceptance,
        /// Comparisons and logic on truth values.
        bool_compute: Acceptance,
        /// The mask of `scaled_dot_product_attention` on the direct path.
        sdpa_mask: Effect,
        /// What the limit on weights counts.
        slot_unit: SlotUnit,
        /// What the minimum size of surfaces applies to.
        surface_unit: SurfaceUnit,
        /// What binds surfaces to names.
        binding: BindingOrder,
        /// Whether compilations leak until [`Runtime::compiles`] is reached.
        compile_leak: Effect,
        /// An IOSurface passed as `weightsBuffer`.
        weights_buffer: Effect,
    }
}

/// A list of element types, in chip files by their names in MIL.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(try_from = "Vec<String>")]
pub struct DTypes(pub Vec<DType>);

impl TryFrom<Vec<String>> for DTypes {
    type Error = String;

    fn try_from(names: Vec<String>) -> Result<Self, String> {
        let parse = |name: &String| name.parse().map_err(|()| format!("\"{name}\" is no type"));
        Ok(DTypes(names.iter().map(parse).collect::<Result<_, _>>()?))
    }
}

/// Numbers by the name of an operation.
pub type ByOp = BTreeMap<String, Fact<f64>>;
